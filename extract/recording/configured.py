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
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from torch import nn

from extract.arguments.trials import AttemptError, attempt
from extract.arguments.values import is_variadic, list_required, read_parameters
from extract.recording.users import is_of

_MOST_CLASSES = 4  # for one parameter
_LEAST_LETTERS = 3  # of a parameter that is named after a class
_TAKES_FILE = re.compile(r"(model_?)?(cfg|config|conf|configuration|yaml)(_?(file|path|name|dict))?")


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
    kind: Any = type(value)
    names = _list_settings(kind)
    known = getattr(value, "__dict__", {})
    return {name: known[name] for name in names} if names and all(name in known for name in names) else None


@functools.cache
def _list_settings(kind: Any) -> list[str]:
    return [name for name, parameter in read_parameters(kind).items() if not is_variadic(parameter)]


class ConfigurationFile(NamedTuple):
    """A file that may configure models."""

    path: str
    text: str

    def list_calls(self, definition: Callable[..., Any], parameter: str) -> list[Callable[[], Any]]:
        """Return the calls of a class or function with this file: with the table in it, and with its path."""
        table = None
        with contextlib.suppress(AttemptError, ImportError):  # the source may bring no parser
            table = attempt(functools.partial(importlib.import_module("yaml").safe_load, self.text))
        values = [*([table] if table and isinstance(table, dict) else []), self.path]
        return [functools.partial(definition, **{parameter: value}) for value in values]


def find_file_parameter(definition: Callable[..., Any]) -> str | None:
    """Return the parameter of a class or function that takes a configuration file, where it needs no other."""
    parameters = read_parameters(definition)
    for name, parameter in parameters.items():
        stated = isinstance(parameter.default, str) and parameter.default.endswith((".yaml", ".yml"))
        if (stated or _TAKES_FILE.fullmatch(name)) and set(list_required(parameters)) <= {name}:
            return name
    return None


def make_type_finder(packages: frozenset[str]) -> Callable[[str], type | None]:
    """Return a function that gives the class that a registry of some packages finds by its own name, or None.

    Args: packages: the top-level packages; only what is imported counts.
    """
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in packages]
    values = [value for module in modules for value in list(getattr(module, "__dict__", {}).values())]
    registries = list({id(value): value for value in values if _is_registry(value)}.values())

    @functools.cache
    def find_type(name: str) -> type | None:
        for registry in registries:
            with contextlib.suppress(Exception):  # it may import what is not installed
                kind = registry.get(name)
                if isinstance(kind, type) and kind.__name__ == name:
                    return kind
        return None

    return find_type


def _is_registry(value: Any) -> bool:
    kind = type(value)
    return not issubclass(kind, type | types.ModuleType) and all(
        isinstance(inspect.getattr_static(kind, name, None), types.FunctionType) for name in ("build", "get")
    )
