"""Make the parameters of a command from the dataclasses that declare its options.

    @app.command()
    @takes_options
    def curate(source: ..., options: CurateOptions, jobs: ...) -> None: ...

The command line shows every field of `CurateOptions` that has an `Option`, in place of `options`; `curate` is called
with the dataclass that holds what was typed.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from manifests.options import RUNTIME, Option


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with a parameter for each option, in place of each parameter that is a dataclass of options.

    Args: command: a function whose parameters are Typer's, or dataclasses with fields `Annotated[TYPE, Option(...)]`.
        Fields without an `Option` are not set on the command line.
    Returns: a function for Typer, which builds the dataclasses and calls `command` with them.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[type, dict[str, Any]]] = {}  # by field its type with the option
    parameters: list[Parameter] = []
    moved: list[tuple[str, Parameter]] = []
    for name, own in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not (isinstance(kind, type) and is_dataclass(kind)):
            parameters.append(own.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))
            continue
        groups[name] = (kind, declared := {})
        for field_name, default, hint in _list_options(kind):
            value_type, option = get_args(hint)
            declared[field_name] = hint
            parameter = _make_parameter(field_name, default, value_type, option)
            if option.after is None:
                parameters.append(parameter)
            else:
                moved.append((option.after, parameter))
    for before, parameter in moved:
        names = [item.name for item in parameters]
        parameters.insert(names.index(before) + 1, parameter)

    @functools.wraps(command)
    def run(**typed: Any) -> None:
        for name, (kind, declared) in groups.items():
            typed[name] = kind(**{field: _read(hint, typed.pop(field)) for field, hint in declared.items()})
        command(**typed)

    # Typer reads both: the order from the signature, the types from the annotations.
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run


def _read(hint: Any, typed: Any) -> Any:
    """Return the value of a field for what Typer has parsed."""
    value_type, option = get_args(hint)
    read = option.read or (lambda value: value)
    if get_origin(value_type) is tuple:
        return tuple(read(text) for text in typed or ())
    return None if typed is None else read(typed)


def _list_options(kind: type) -> list[tuple[str, Any, Any]]:
    """Return name, default and type of each field that has an option."""
    hints = get_type_hints(kind, include_extras=True)
    declared = [(field.name, field.default, hints[field.name]) for field in fields(kind)]
    return [item for item in declared if any(isinstance(note, Option) for note in get_args(item[2])[1:])]


def _make_parameter(name: str, default: Any, kind: Any, option: Option) -> Parameter:
    # Typer knows no tuples of any length: the command line has lists, whose default is not shown.
    if get_origin(kind) is tuple:
        kind, default = list[str] | None, None
    # The flag is always named: for a bool, Typer would add its opposite.
    flag = option.flag or f"--{name.replace('_', '-')}"
    # A letter for a number: with names of types beside them, Typer cuts the names of options.
    letters = {"int": "N", "float": "X"}
    metavar = option.metavar or next((letter for name, letter in letters.items() if name in str(kind)), None)
    parameter = typer.Option(
        flag, metavar=metavar, help=option.help, rich_help_panel=option.panel, min=option.least, max=option.most
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, parameter])


#: `--runtime`, for commands whose options are not on a dataclass.
RuntimeOption = Annotated[list[str] | None, typer.Option("--runtime", metavar=RUNTIME.metavar, help=RUNTIME.help)]

#: Options of many commands, which mean the same in each.
JobsOption = Annotated[
    int | None, typer.Option("--jobs", metavar="N", min=1, help="Worker processes (default: CPU count).")
]
UnsafeOption = Annotated[
    bool, typer.Option("--unsafe-no-sandbox", help="Run foreign code without the sandbox: only code that you trust.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
