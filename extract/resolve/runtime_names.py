"""Answers about the modules of the runtime: the standard library, torch, torchvision and numpy.

The text of a module is asked first, because importing torch and torchvision takes more than two seconds. It answers
where a name is bound at its top level, outside of branches, as far as it imports only what is installed; all other
questions go to the imported module.

    >>> RuntimeNames().is_module_class("torch.nn", "Conv2d")  # the class is found in torch/nn/modules/conv.py
    True
"""

import ast
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lemur_core.source.parse import split_dotted_name

_READ = frozenset({"torch", "torchvision"})  # packages that take long to import
_DELETED, _WORD = re.compile(rb"^\s*del (.+)", re.M), re.compile(rb"\w+")
_REPLACED = re.compile(rb"^sys\.modules\[.*\] *=", re.M)  # another object takes the place of the module
_ROOT = ("torch.nn.modules.module", "Module")


class RuntimeNames:
    """Answers about the modules of the runtime; each computed once."""

    def __init__(self) -> None:
        self._answers: dict[str, bool | list[str]] = {}
        self.has_new_answers = False  # True if there are answers that `load` did not provide

    def has(self, dotted: str, name: str) -> bool:
        """Return whether a module exists and offers a name ("" for the module alone)."""
        return bool(self._answer(_has, dotted, name))

    def is_module_class(self, dotted: str, name: str) -> bool:
        """Return whether a name is a subclass of torch.nn.Module."""
        return bool(self._answer(_is_module_class, dotted, name))

    def is_submodule(self, package: str, name: str) -> bool:
        """Return whether a package that is not part of the runtime has a submodule of that name."""
        return package not in {"torch", "torchvision", "numpy"} and bool(self._answer(_is_submodule, package, name))

    def star(self, dotted: str) -> frozenset[str]:
        """Return the names that a star import binds."""
        names = self._answer(_star, dotted)
        assert isinstance(names, list)
        return frozenset(names)

    def _answer(self, ask: Callable[..., bool | list[str]], *names: str) -> bool | list[str]:
        question = " ".join((ask.__name__, *names))
        if question not in self._answers:
            self._answers[question] = ask(*names)
            self.has_new_answers = True
        return self._answers[question]

    @staticmethod
    def key() -> str:
        """Return a key with the versions that the answers hold for."""
        return "runtime-names:" + ",".join(importlib.metadata.version(p) for p in ("torch", "torchvision", "numpy"))

    def load(self, data: bytes | None) -> None:
        """Load the answers of an earlier run."""
        if data is not None:
            self._answers.update(json.loads(data))

    def dump(self) -> bytes:
        """Return the answers in serialized form, for a later run."""
        return json.dumps(self._answers, sort_keys=True).encode()


def _import(dotted: str) -> object | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated modules of torch warn on import
        try:
            return importlib.import_module(dotted)
        except (ImportError, AttributeError, OSError, RuntimeError):
            return None  # modules of torch for other platforms fail in all these ways


def _has(dotted: str, name: str) -> bool:
    if name not in {"", "*"} and _is_public(dotted) and _find_definition(dotted, name) is not None:
        return True
    module = _import(dotted)
    if module is None:
        return False
    if not name or name == "*" or hasattr(module, name):
        return True
    try:
        return importlib.util.find_spec(f"{dotted}.{name}") is not None
    except ImportError:
        return False


def _star(dotted: str) -> list[str]:
    module = _import(dotted)
    return [] if module is None else sorted(getattr(module, "__all__", [n for n in dir(module) if n[0] != "_"]))


def _is_submodule(package: str, name: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.submodule_search_locations is None:
            return False
        return importlib.machinery.PathFinder.find_spec(name, spec.submodule_search_locations) is not None
    except (ImportError, ValueError):
        return False


def _is_module_class(dotted: str, name: str) -> bool:
    stated = _is_stated_module_class(dotted, name) if _is_public(dotted) else None
    if stated is not None:
        return stated
    from torch.nn import Module

    value = getattr(_import(dotted), name, None)
    return isinstance(value, type) and issubclass(value, Module)


# -- what the text of a module says ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ModuleText:
    """The statements that bind names at the top level of a module, outside of branches, and its star imports."""

    binders: Mapping[str, ast.stmt]
    stars: tuple[str, ...]
    exports: frozenset[str] | None


_Definition = tuple[str, str, ast.stmt | None]  # module, name, and the statement; None for a module


def _is_public(dotted: str) -> bool:
    """Return whether all parts of a module's name are public; some private ones fail on import for other reasons."""
    return "._" not in dotted


@cache
def _read(dotted: str) -> _ModuleText | None:
    """Return what a module of torch or torchvision binds; None without a file, or if it imports what is missing."""
    file, above = _find_file(dotted), dotted.rpartition(".")[0]
    if file is None or (above and _read(above) is None):
        return None
    code = file.read_bytes()
    if _REPLACED.search(code):
        return None
    tree = ast.parse(code)
    package = dotted if file.name == "__init__.py" else above
    binders: dict[str, ast.stmt] = {}
    stars: list[str] = []
    exports: frozenset[str] | None = None
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if isinstance(node, ast.ImportFrom):
                node.module = _absolute(node, package)
                node.level = 0
            for alias in node.names:
                if not _is_installed(alias.name if isinstance(node, ast.Import) else str(node.module)):
                    return None
                if alias.name == "*" and isinstance(node, ast.ImportFrom):
                    stars.append(str(node.module))
                else:
                    binders[alias.asname or alias.name.partition(".")[0]] = node
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            binders[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    binders[target.id] = node
                    if target.id == "__all__":
                        words = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else []
                        exports = frozenset(str(w.value) for w in words if isinstance(w, ast.Constant))
    for name in {name.decode() for names in _DELETED.findall(code) for name in _WORD.findall(names)}:
        binders.pop(name, None)
    return _ModuleText(binders, tuple(stars), exports)


def _find_file(dotted: str) -> Path | None:
    """Return the file of a module of torch or torchvision; nothing is imported for it."""
    top, *rest = dotted.split(".")
    spec = importlib.util.find_spec(top) if top in _READ else None
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0], *rest)
    return next((file for file in (path / "__init__.py", path.with_name(f"{path.name}.py")) if file.is_file()), None)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


@cache
def _is_installed(dotted: str) -> bool:
    top = dotted.partition(".")[0]
    return top in _READ or top in sys.stdlib_module_names or importlib.util.find_spec(top) is not None


@cache
def _find_definition(dotted: str, name: str) -> _Definition | None:
    """Return where a name of a module of torch or torchvision is defined; None where the text does not tell."""
    text = _read(dotted)
    if text is None:
        return None
    node = text.binders.get(name)
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
        if (node.module, original) != (dotted, name):
            if node.module.partition(".")[0] in _READ:
                return _find_definition(node.module, original)
            return node.module, original, node
        node = None  # `from torch.nn import functional` in torch/nn/__init__.py: a module
    if node is not None:
        return dotted, name, node
    if _find_file(f"{dotted}.{name}") is not None:
        return f"{dotted}.{name}", "", None
    for star in text.stars:
        source = _read(star)
        if source is not None and (name in source.exports if source.exports is not None else name[0] != "_"):
            return _find_definition(star, name)
    return None


def _is_stated_module_class(dotted: str, name: str) -> bool | None:
    """Return whether a name is a subclass of torch.nn.Module; None where the text does not tell."""
    definition = _find_definition(dotted, name)
    if definition is None:
        return None
    module, name, node = definition
    if (module, name) == _ROOT:
        return True
    if isinstance(node, ast.FunctionDef):
        return False
    if not isinstance(node, ast.ClassDef):
        return None
    chains = [split_dotted_name(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]
    answers = [_is_stated_module_class(module, chain[0]) if len(chain) == 1 else None for chain in chains]
    return True if True in answers else None if None in answers else False


RUNTIME_NAMES = RuntimeNames()
