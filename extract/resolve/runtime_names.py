"""Answers about the modules of the runtime: the standard library, torch, torchvision and numpy.

Importing torch takes seconds, so a process does it once for each version of the runtime, and lists the names of all
modules that are imported along; the list is cached with the answers. Any other module is imported here.

    >>> RuntimeNames().is_module_class("torch.nn", "Conv2d")
    True
"""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Callable

_PACKAGES = ("torch", "torchvision", "numpy")
_WHOLE = ("torch.nn", "torchvision")  # importing these imports not all of their modules

Answer = bool | list[str]


class RuntimeNames:
    """Answers about the modules of the runtime; each computed once."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}
        self._listed: dict[
            str, list[str]
        ] = {}  # by module: its names, and those of subclasses of Module, each as a text
        self.has_new_answers = False  # True if there are answers that `load` did not provide

    def has(self, dotted: str, name: str) -> bool:
        """Return whether a module exists and offers a name ("" for the module alone)."""
        names, _ = self._list(dotted)
        return name in names or bool(self._answer(_has, dotted, name))

    def is_module_class(self, dotted: str, name: str) -> bool:
        """Return whether a name is a subclass of torch.nn.Module."""
        names, classes = self._list(dotted)
        return name in classes if name in names else bool(self._answer(_is_module_class, dotted, name))

    def is_submodule(self, package: str, name: str) -> bool:
        """Return whether a package of the standard library has a submodule of that name."""
        return package in sys.stdlib_module_names and bool(self._answer(_is_submodule, package, name))

    def star(self, dotted: str) -> frozenset[str]:
        """Return the names that a star import binds."""
        names = self._answer(_star, dotted)
        assert isinstance(names, list)
        return frozenset(names)

    def _list(self, dotted: str) -> tuple[list[str], list[str]]:
        if dotted.partition(".")[0] not in _PACKAGES:
            return [], []
        if not self._listed:
            command = [sys.executable, "-P", __file__]
            self._listed = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            self.has_new_answers = True
        names, classes = self._listed.get(dotted, ("-", ""))
        return names.split(" "), classes.split()

    def _answer(self, ask: Callable[..., Answer], *names: str) -> Answer:
        question = " ".join((ask.__name__, *names))
        if question not in self._answers:
            self._answers[question] = ask(*names)
            self.has_new_answers = True
        return self._answers[question]

    @staticmethod
    def key() -> str:
        """Return a key with the versions that the answers hold for."""
        return "modules-of-runtime:" + ",".join(importlib.metadata.version(package) for package in _PACKAGES)

    def load(self, data: bytes | None) -> None:
        """Load the list and the answers of an earlier run."""
        if data is not None:
            listed, answers = json.loads(data)
            self._listed.update(listed)
            self._answers.update(answers)

    def dump(self) -> bytes:
        """Return the list and the answers in serialized form, for a later run."""
        return json.dumps([self._listed, self._answers], sort_keys=True).encode()


def _import(dotted: str) -> object | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated modules of torch warn on import
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
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    folders = spec.submodule_search_locations if spec is not None else None
    return folders is not None and importlib.machinery.PathFinder.find_spec(name, folders) is not None


def _is_module_class(dotted: str, name: str) -> bool:
    from torch.nn import Module

    value = getattr(_import(dotted), name, None)
    return isinstance(value, type) and issubclass(value, Module)


def list_names() -> dict[str, list[str]]:
    """Import the packages, and return the names in each of their modules, as `RuntimeNames` keeps them."""
    for package in _PACKAGES:
        importlib.import_module(package)
    for package in _WHOLE:
        for submodule in pkgutil.walk_packages(sys.modules[package].__path__, f"{package}."):
            if "._" not in submodule.name:
                _import(submodule.name)
    from torch.nn import Module

    found = {}
    for dotted, module in sorted(sys.modules.items()):
        if dotted.partition(".")[0] in _PACKAGES:
            path = getattr(module, "__path__", None)
            submodules = pkgutil.iter_modules(path) if isinstance(path, list) else ()
            names, classes = {"", *(submodule.name for submodule in submodules)}, set()
            for name in dir(module):
                try:
                    value = getattr(module, name)
                except (AttributeError, ImportError, RuntimeError):
                    continue  # of a module that makes its names on request
                names.add(name)
                if isinstance(value, type) and issubclass(value, Module):
                    classes.add(name)
            found[dotted] = [" ".join(sorted(names)), " ".join(sorted(classes))]
    return found


RUNTIME_NAMES = RuntimeNames()

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(list_names()))
