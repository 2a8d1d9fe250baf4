"""What the declared runtime offers, asked of the packages themselves: they are trusted, and installed here.

Importing torch takes seconds, so the answers are kept (by version) between runs.
"""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import warnings
from collections.abc import Callable


class RuntimeNames:
    """Answers about the standard library, torch, torchvision and numpy; each asked once."""

    def __init__(self) -> None:
        self._answers: dict[str, bool | list[str]] = {}
        self.asked = False  # whether there are answers that `load` did not bring

    def has(self, dotted: str, name: str) -> bool:
        """Whether a module exists and offers a name ("" for the module alone)."""
        return bool(self._answer(f"has {dotted} {name}", lambda: _has(dotted, name)))

    def is_module_class(self, dotted: str, name: str) -> bool:
        """Whether a name is a subclass of torch.nn.Module."""
        return bool(self._answer(f"class {dotted} {name}", lambda: _is_module_class(dotted, name)))

    def is_submodule(self, package: str, name: str) -> bool:
        """Whether a package, other than the runtime's, has a submodule of that name."""
        if package in {"torch", "torchvision", "numpy"}:
            return False
        return bool(self._answer(f"submodule {package} {name}", lambda: _is_submodule(package, name)))

    def star(self, dotted: str) -> frozenset[str]:
        """What a star import brings."""
        found = self._answer(f"star {dotted}", lambda: _star(dotted))
        assert isinstance(found, list)
        return frozenset(found)

    def _answer(self, question: str, ask: Callable[[], bool | list[str]]) -> bool | list[str]:
        if question not in self._answers:
            self._answers[question] = ask()
            self.asked = True
        return self._answers[question]

    @staticmethod
    def key() -> str:
        """Names the versions that the answers are true for."""
        return "runtime-names:" + ",".join(importlib.metadata.version(p) for p in ("torch", "torchvision", "numpy"))

    def load(self, data: bytes | None) -> None:
        """Take in answers of an earlier run."""
        if data is not None:
            self._answers.update(json.loads(data))

    def dump(self) -> bytes:
        """The answers, for a later run."""
        return json.dumps(self._answers, sort_keys=True).encode()


def _import(dotted: str) -> object | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated modules of torch say so on import
        try:
            return importlib.import_module(dotted)
        except (ImportError, AttributeError, OSError, RuntimeError):
            return None  # modules of torch for other platforms fail in all these ways


def _has(dotted: str, name: str) -> bool:
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
        found = importlib.util.find_spec(package)
        if found is None or found.submodule_search_locations is None:
            return False
        return importlib.machinery.PathFinder.find_spec(name, found.submodule_search_locations) is not None
    except (ImportError, ValueError):
        return False


def _is_module_class(dotted: str, name: str) -> bool:
    from torch.nn import Module

    found = getattr(_import(dotted), name, None)
    return isinstance(found, type) and issubclass(found, Module)


RUNTIME_NAMES = RuntimeNames()
