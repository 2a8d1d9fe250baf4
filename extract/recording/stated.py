"""Inside the sandbox: models that the Python files of a package state as dicts, which a registry builds.

A file may add to others:

    _base_ = ["base.py"]
    model = dict(type="Detector", backbone=dict(type="Net", depth=50))
"""

import contextlib
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

_MAX_FILES = 10_000
_TYPE = re.compile(r"""(?:\btype\s*=|['"]type['"]\s*:)\s*['"](?:\w+\.)?(\w+)['"]""")
_DEFINES = re.compile(r"^(?:class|def)\b", re.MULTILINE)
_BASES = re.compile(r"^_base_\s*=\s*(\[[^\]]*\]|.*)", re.MULTILINE)
_BASE = re.compile(r"""['"]([^'"]+\.py)['"]""")


class StatedPart(NamedTuple):
    """A model that a file states, and its parts, which may be built alone."""

    build: Callable[[], Any]
    inner: "list[StatedPart]"


class StatedModels:
    """The Python files of some packages that state models as dicts with a `type`, and how to build these.

    Args:
        folders: that hold the packages.
        packages: the top-level packages; only what is imported can build models.
    """

    def __init__(self, folders: Sequence[str], packages: frozenset[str]) -> None:
        self._package = min(packages)
        roots = [root for name in packages for folder in folders if (root := Path(folder, name)).is_dir()]
        files = islice(dict.fromkeys(path for root in roots for path in sorted(root.rglob("*.py"))), _MAX_FILES)
        texts = {path: path.read_text("utf-8", "replace") for path in files}
        states = re.compile(f"{_TYPE.pattern}|{_BASES.pattern}", re.MULTILINE).search
        texts = {path: text for path, text in texts.items() if states(text) and not _DEFINES.search(text)}
        self._types = {path: frozenset(_TYPE.findall(text)) for path, text in texts.items()}
        self._bases = {
            path: [(path.parent / base).resolve() for part in _BASES.findall(text) for base in _BASE.findall(part)]
            for path, text in texts.items()
        }
        modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in packages]
        values = [value for module in modules for value in list(getattr(module, "__dict__", {}).values())]
        self._registries = list({id(value): value for value in values if _is_registry(value)}.values())
        self._read = _find_reader() if self._registries else None

    def list_naming(self, names: Sequence[str]) -> list[Path]:
        """Return the files that state a model with one of these classes: the first classes first, small files first."""
        if self._read is None:
            return []
        places = {name: place for place, name in reversed(list(enumerate(names)))}
        ranked = []
        for path in self._types:
            types_of = self._list_types(path, frozenset())
            known = [places[name] for name in types_of if name in places]
            if known:
                ranked.append((min(known), len(types_of), str(path)))
        return [Path(path) for _, _, path in sorted(ranked)]

    def _list_types(self, path: Path, seen: frozenset[Path]) -> frozenset[str]:
        """Return the types that a file states itself or in a file that it adds to."""
        inner = [self._list_types(base, seen | {path}) for base in self._bases.get(path, ()) if base not in seen]
        return self._types.get(path, frozenset()).union(*inner)

    def read_parts(self, path: Path) -> list[StatedPart]:
        """Return the outermost models that a file states."""
        assert self._read is not None
        settings = self._read(str(path))
        scope = settings.get("default_scope")
        return list(self._list_parts([settings[name] for name in settings], scope))

    def _list_parts(self, value: Any, scope: str | None) -> Iterator[StatedPart]:
        items = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        name = value.get("type") if isinstance(value, Mapping) else None
        registry = self._find_registry(name) if isinstance(name, str) else None
        inner = [part for item in items for part in self._list_parts(item, scope)]
        if registry is None:
            yield from inner
        else:
            # In which the names of types are looked up.
            settings = {**value, "_scope_": scope or self._package} if hasattr(registry, "scope") else value
            yield StatedPart(functools.partial(registry.build, settings), inner)

    def _find_registry(self, name: str) -> Any:
        """Return the registry that knows a type as a module; None if none does."""
        for registry in self._registries:
            kind = None
            with contextlib.suppress(Exception):  # it may import what is not installed
                kind = registry.get(name)
            if isinstance(kind, type) and issubclass(kind, nn.Module):
                return registry
        return None


def _is_registry(value: Any) -> bool:
    kind = type(value)
    return not issubclass(kind, type | types.ModuleType) and all(
        isinstance(inspect.getattr_static(kind, name, None), types.FunctionType) for name in ("build", "get")
    )


def _find_reader() -> Callable[[str], Any] | None:
    """Return the function of an imported class that reads such a file, with those that it adds to."""
    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            method = vars(value).get("fromfile") if issubclass(type(value), type) else None
            if isinstance(method, staticmethod | classmethod) and isinstance(method.__func__, types.FunctionType):
                return value.fromfile  # type: ignore[no-any-return]
    return None
