"""Inside the sandbox: which parameters of a class take a configuration or another model that can be constructed.

    class Encoder(nn.Module):
        def __init__(self, config: EncoderConfig): ...      # by its annotation
    class Tagger(nn.Module):
        settings_class = EncoderConfig
        def __init__(self, settings): ...                   # by an attribute of the class
        def __init__(self, encoder): ...                    # by its name: there is an `Encoder` in the module

The search for arguments makes them: configurations with small values first, `EncoderConfig(width=32, layers=2)`.

    class Model(nn.Module):
        def __init__(self, cfg="small.yaml", channels=3): ...   # takes a file

    head:                                                       # small.yaml
      - [16, Detect, [80]]

`Model` is constructed from the contents, and then from the path, of each such file of the source. For the calls of
`Detect`, those come first that name it.

A package's files may state models as dicts, which a registry builds; a file may add to others:

    _base_ = ["base.py"]
    model = dict(type="Detector", backbone=dict(type="Net", depth=50))
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from extract.arguments.trials import AttemptError, attempt
from extract.arguments.values.inputs import is_variadic, list_required
from extract.arguments.values.names import read_parameters
from extract.recording.users import is_of

_MOST_CLASSES = 4  # for one parameter
_LEAST_LETTERS = 3  # of a parameter that is named after a class
_TAKES_FILE = re.compile(r"(model_?)?(cfg|config|conf|configuration|yaml)(_?(file|path|name|dict))?")
_WORD = re.compile(r"\w+")
_MAX_FILES = 10_000
_TYPE = re.compile(r"""(?:\btype\s*=|['"]type['"]\s*:)\s*['"](?:\w+\.)?(\w+)['"]""")
_DEFINES = re.compile(r"^(?:class|def)\b", re.MULTILINE)
_BASES = re.compile(r"^_base_\s*=\s*(\[[^\]]*\]|.*)", re.MULTILINE)
_BASE = re.compile(r"""['"]([^'"]+\.py)['"]""")


@functools.cache
def list_accepted(cls: Any) -> list[tuple[str, type]]:
    """Return the parameters without default that take an instance of a class of the same package, with the class.

    The likeliest classes come first, where there are several.
    """
    parameters = read_parameters(cls)
    return [
        (name, accepted)
        for name in list_required(parameters)
        for accepted in islice(dict.fromkeys(_list_classes(cls, name, parameters[name].annotation)), _MOST_CLASSES)
    ]


def _list_classes(cls: Any, name: str, annotation: Any) -> Iterator[type]:
    """Yield the classes that a parameter may take: annotated, in an attribute of the class, named alike."""
    space, package = vars(sys.modules[cls.__module__]), frozenset({cls.__module__.partition(".")[0]})
    if isinstance(annotation, str):
        with contextlib.suppress(Exception):  # it may name what exists for a type checker alone
            annotation = eval(annotation, dict(space))
    word = name.replace("_", "").lower()
    held = [value for key, value in inspect.getmembers_static(cls) if key.lower().startswith(name.lower())]
    named = [
        value
        for value in list(space.values())
        if isinstance(value, type) and len(word) >= _LEAST_LETTERS and value.__name__.lower().endswith(word)
    ]
    for value in (annotation, *typing.get_args(annotation), *held, *named):
        if isinstance(value, type) and value is not cls and is_of(value, package) and _can_be_constructed(value):
            yield value


def _can_be_constructed(value: type) -> bool:
    """Return whether a class is a model, or gives an object with settings without arguments."""
    if issubclass(value, nn.Module):
        return True
    if issubclass(value, int | str | tuple | Mapping) or list_required(read_parameters(value)):
        return False
    try:
        return bool(vars(attempt(value)))
    except (AttemptError, TypeError):
        return False


def read_settings(value: Any) -> dict[str, Any] | None:
    """Return the arguments that give an object, by name; None if its attributes do not tell them."""
    if dataclasses.is_dataclass(value):  # it may have slots, or no fields
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return fields if fields.keys() >= set(list_required(read_parameters(type(value)))) else None
    names = _list_settings(type(value))
    known = getattr(value, "__dict__", {})
    return {name: known[name] for name in names} if names and all(name in known for name in names) else None


@functools.cache
def _list_settings(kind: type) -> list[str]:
    return [name for name, parameter in read_parameters(kind).items() if not is_variadic(parameter)]


def guess_settings(value: Any) -> dict[str, Any] | None:
    """Return arguments that probably give an object: attributes with the names of parameters, private ones too.

    Returns: by parameter; None if a required one has no attribute, or none has one.
    """
    known = getattr(value, "__dict__", {})
    settings = {}
    for name, parameter in read_parameters(type(value)).items():
        held = next((known[own] for own in (name, f"_{name}") if own in known), None)
        if is_variadic(parameter) or (held is None and parameter.default is not parameter.empty):
            continue
        if held is None:
            return None
        settings[name] = held
    return settings or None


class ConfigurationFile(NamedTuple):
    """A file that may configure models."""

    path: str
    text: str
    words: frozenset[str]

    def list_calls(self, definition: Callable[..., Any], parameter: str) -> list[Callable[[], Any]]:
        """Return the calls of a class or function with this file: with its contents, and with its path."""
        values = [item for item in (self.read_contents(), self.path) if item]
        return [functools.partial(definition, **{parameter: value}) for value in values]

    def read_contents(self) -> dict[str, Any] | None:
        """Return the table in the file; None if it is something else, or the source brings no parser."""
        try:
            value = attempt(functools.partial(importlib.import_module("yaml").safe_load, self.text))
        except (AttemptError, ImportError):
            return None
        return value if isinstance(value, dict) else None


def read_configurations(paths: Sequence[str]) -> list[ConfigurationFile]:
    """Return the files at these paths."""
    texts = {path: Path(path).read_text("utf-8", "replace") for path in paths}
    return [ConfigurationFile(path, text, frozenset(_WORD.findall(text))) for path, text in texts.items()]


def find_file_parameter(definition: Callable[..., Any]) -> str | None:
    """Return the parameter of a class or function that takes a configuration file, where it needs no other."""
    parameters = read_parameters(definition)
    for name, parameter in parameters.items():
        stated = isinstance(parameter.default, str) and parameter.default.endswith((".yaml", ".yml"))
        if (stated or _TAKES_FILE.fullmatch(name)) and set(list_required(parameters)) <= {name}:
            return name
    return None


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
        modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in packages]
        values = [value for module in modules for value in list(getattr(module, "__dict__", {}).values())]
        self._registries = list({id(value): value for value in values if _is_registry(value)}.values())
        self._types_by_name: dict[str, type | None] = {}
        self._read = _find_reader() if self._registries else None
        self._types = self._find_types(folders, packages) if self._read is not None else {}

    @staticmethod
    def _find_types(folders: Sequence[str], packages: frozenset[str]) -> dict[Path, frozenset[str]]:
        """Return by file the types that it states, itself or in a file that it adds to."""
        roots = [root for name in packages for folder in folders if (root := Path(folder, name)).is_dir()]
        files = islice(dict.fromkeys(path for root in roots for path in sorted(root.rglob("*.py"))), _MAX_FILES)
        texts = {path: path.read_text("utf-8", "replace") for path in files}
        states = re.compile(f"{_TYPE.pattern}|{_BASES.pattern}", re.MULTILINE).search
        texts = {path: text for path, text in texts.items() if states(text) and not _DEFINES.search(text)}
        own = {path: frozenset(_TYPE.findall(text)) for path, text in texts.items()}
        bases = {
            path: [(path.parent / base).resolve() for part in _BASES.findall(text) for base in _BASE.findall(part)]
            for path, text in texts.items()
        }

        def list_all(path: Path, seen: frozenset[Path]) -> frozenset[str]:
            inner = [list_all(base, seen | {path}) for base in bases.get(path, ()) if base not in seen]
            return own.get(path, frozenset()).union(*inner)

        return {path: list_all(path, frozenset()) for path in own}

    def list_naming(self, names: Sequence[str]) -> list[Path]:
        """Return the files that state a model with one of these classes: the first classes first, small files first."""
        places = {name: place for place, name in reversed(list(enumerate(names)))}
        ranked = []
        for path, stated in self._types.items():
            known = [places[name] for name in stated if name in places]
            if known:
                ranked.append((min(known), len(stated), str(path)))
        return [Path(path) for _, _, path in sorted(ranked)]

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

    def find_type(self, name: str) -> type | None:
        """Return the class that a registry finds by its own name; None if none does."""
        if name not in self._types_by_name:
            self._types_by_name[name] = next(
                (kind for _, kind in self._list_known(name) if kind.__name__ == name), None
            )
        return self._types_by_name[name]

    def _find_registry(self, name: str) -> Any:
        """Return the registry that knows a type as a module; None if none does."""
        return next((registry for registry, kind in self._list_known(name) if issubclass(kind, nn.Module)), None)

    def _list_known(self, name: str) -> Iterator[tuple[Any, type]]:
        for registry in self._registries:
            kind = None
            with contextlib.suppress(Exception):  # it may import what is not installed
                kind = registry.get(name)
            if isinstance(kind, type):
                yield registry, kind


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
