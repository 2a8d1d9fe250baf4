"""The arguments that a block ran with, as its row in the table has them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manifests.records import SpecArgument


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments as Python expressions."""

    args: tuple[str, ...] = ()
    kwargs: Mapping[str, str] | None = None

    def named(self, parameters: Sequence[SpecArgument]) -> dict[str, str]:
        """All of them by name; positional ones by the parameter that takes them."""
        names = positional_names(parameters)
        given = {names[n] if n < len(names) else f"*{n}": value for n, value in enumerate(self.args)}
        return given | dict(self.kwargs or {})

    def text(self) -> str:
        """As Python has them between parentheses."""
        return ", ".join([*self.args, *(f"{name}={value}" for name, value in (self.kwargs or {}).items())])


@dataclass(frozen=True, slots=True)
class Worked:
    """The call that constructed a block, and the one that ran it; None when it was not run."""

    init: Call
    forward: Call | None
    method: str = "forward"

    def constructor_call(self, name: str) -> str:
        """Python that makes the block."""
        return f"{name}({self.init.text()})"

    def forward_call(self, name: str = "block") -> str:
        """Python that calls it; empty when it was not called."""
        called = "" if self.method in ("forward", "__call__") else f".{self.method}"
        return f"{name}{called}({self.forward.text()})" if self.forward is not None else ""


def worked_of(arguments: str | None) -> Worked | None:
    """The column `arguments` read; None when it is null or holds something else."""
    if arguments is None:
        return None
    try:
        found = json.loads(arguments)
        forward = found.get("forward")
        return Worked(
            _call(found["init"]), None if forward is None else _call(forward), found.get("method") or "forward"
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def positional_names(parameters: Sequence[SpecArgument]) -> list[str]:
    """The names of the parameters that positional arguments go to, in order."""
    return [item.name for item in parameters if item.kind == "positional"]


def _call(found: dict[str, object]) -> Call:
    """Of `{"args": […], "kwargs": {…}}`, or of expressions by name."""
    args, kwargs = found.get("args", []), found.get("kwargs", {})
    if found.keys() <= {"args", "kwargs"} and isinstance(args, list) and isinstance(kwargs, dict):
        return Call(tuple(str(value) for value in args), {str(name): str(value) for name, value in kwargs.items()})
    return Call((), {str(name): str(value) for name, value in found.items()})
