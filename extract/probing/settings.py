"""Configuration objects: an object whose attributes follow their names, and small versions of real configurations."""

import inspect
from collections.abc import Mapping
from typing import Any

from extract.probing.running import Mistake, attempt
from extract.probing.values import Scale, candidates, shrunk_arguments, value_of

PLACE = "@settings"
_MOST = 200


class Settings:
    """Answers any attribute with a value that its name suggests, and remembers what was asked."""

    def __init__(self, evaluate: Any, scale: Scale) -> None:
        object.__setattr__(self, "_evaluate", evaluate)
        object.__setattr__(self, "_scale", scale)
        object.__setattr__(self, "_asked", {})
        object.__setattr__(self, "_by_key", [])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or len(self._asked) > _MOST:
            raise AttributeError(name)
        text = value_of(name, self._scale)
        self._asked[name] = text
        value = self._evaluate(text)
        object.__setattr__(self, name, value)
        return value

    def __getitem__(self, name: str) -> Any:
        self._by_key.append(name)
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """As a dict's."""
        self._by_key.append(name)
        return default if default is not None else getattr(self, name)

    def expression(self) -> str:
        """An object with the attributes that were asked for, or a dict where they were asked for by key."""
        if self._by_key:
            return "{" + ", ".join(f"{name!r}: {text}" for name, text in self._asked.items()) + "}"
        return f"types.SimpleNamespace({', '.join(f'{name}={text}' for name, text in self._asked.items())})"


def configuration_expressions(name: str, cls: type) -> list[str]:
    """Constructor calls of a configuration class: small ones first, then by its defaults."""
    try:
        default = attempt(cls)
        fields: Mapping[str, object] = vars(default)
    except (Mistake, TypeError):  # then the signature says what there is
        default, fields = None, {}
    parameters = _parameters(cls)
    if default is not None:
        settable = parameters.keys() if not _takes_any(cls) else fields.keys() | parameters.keys()
        known = {field: value for field, value in fields.items() if field in settable and not field.startswith("_")}
    else:
        known = {field: parameter.default for field, parameter in parameters.items()}
    needed = {
        field: candidates(field, parameter.annotation, Scale())[0]
        for field, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    needed = {field: text for field, text in needed.items() if not text.startswith("@")} if default is None else {}
    small = needed | shrunk_arguments({field: _as_parameter(field, value) for field, value in known.items()})
    for field, value in known.items():
        if field.endswith("_config") or (hasattr(value, "__dict__") and type(value).__name__.endswith("Config")):
            inner = _nested(value)
            if inner:
                small[field] = inner
    found = [_call(name, small)]
    found += [_call(name, {**small, **extra}) for extra in ({"num_hidden_layers": "1"},) if extra.keys() & small.keys()]
    return list(dict.fromkeys([*found, _call(name, needed)]))


def _nested(value: object) -> str:
    fields: dict[str, Any] = dict(value) if isinstance(value, dict) else dict(getattr(value, "__dict__", {}))
    small = shrunk_arguments({key: _as_parameter(key, item) for key, item in fields.items() if not key.startswith("_")})
    return "{" + ", ".join(f"{key!r}: {text}" for key, text in sorted(small.items())) + "}" if small else ""


def _call(name: str, arguments: Mapping[str, str]) -> str:
    return f"{name}({', '.join(f'{key}={text}' for key, text in sorted(arguments.items()))})"


def _as_parameter(name: str, default: object) -> inspect.Parameter:
    safe = name if name.isidentifier() else "unnamed"
    return inspect.Parameter(safe, inspect.Parameter.KEYWORD_ONLY, default=default)


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(cls).parameters)
    except (ValueError, TypeError):
        return {}


def _takes_any(cls: type) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in _parameters(cls).values())
