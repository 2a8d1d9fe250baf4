"""Options that are declared once, on the fields of a dataclass; a command takes the dataclass in their place.

    @app.command()
    @takes_options
    def curate(source: ..., options: CurateOptions, jobs: ...) -> None: ...

The command line shows every field of `CurateOptions` that has an `Option`, in place of `options`; `curate` is called
with the dataclass that holds what was typed. Nothing slow is imported here: programs use these dataclasses, too.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from lemur_core.files.errors import UsageError

#: The levels of validation that a block can reach, each one including those before it.
Level = Literal["discovered", "emitted", "parsed", "compiled", "executed", "constructed", "forward", "backward"]

#: Longer conversations are dropped; counted as in `manifests.conversations.count_tokens`.
MAX_TOKENS = 8_192


@dataclass(frozen=True, slots=True)
class Option:
    """Describe how a field is set on the command line: `task: Annotated[tuple[str, ...], Option("Only rows ...")]`.

    Attributes:
        help: the sentence of `--help`.
        flag: the option, if it is not the name of the field.
        metavar: what stands for the value in `--help`.
        panel: the panel of `--help`; the general one by default.
        least: the smallest value that is accepted.
        most: the largest.
        read: parses one text, where a field holds something else than text and numbers.
    """

    help: str
    flag: str | None = None
    metavar: str | None = None
    panel: str | None = None
    least: float | None = None
    most: float | None = None
    read: Callable[[str], Any] | None = None


RUNTIME = Option(
    "A package that foreign code can import besides torch, torchvision and numpy, or lemur-nets: those that LEMUR's"
    " networks use (repeatable).",
    metavar="NAME",
)


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a function for Typer with a parameter for each option of the dataclasses that a command takes.

    Args: command: its parameters are Typer's, or have an `Option`, or are dataclasses with fields
        `Annotated[TYPE, Option(...)]`; fields without an `Option` are not set on the command line.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[type, list[str]]] = {}
    declared: dict[str, tuple[Any, Option]] = {}  # the type and the option of each parameter that is ours
    parameters: list[Parameter] = []
    for name, own in inspect.signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and is_dataclass(kind):
            types, given = get_type_hints(kind, include_extras=True), fields(kind)
            declared |= {field.name: found for field in given if (found := _find_option(types[field.name]))}
            groups[name] = kind, [field.name for field in given if field.name in declared]
            shown = (field for field in given if field.name in declared)
            parameters += [_make_parameter(field.name, field.default, *declared[field.name]) for field in shown]
        elif (found := _find_option(kind)) is not None:
            declared[name] = found
            parameters.append(_make_parameter(name, own.default, *found))
        else:
            parameters.append(own.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**typed: Any) -> None:
        values = {name: _read(value, *declared[name]) if name in declared else value for name, value in typed.items()}
        for name, (kind, own) in groups.items():
            values[name] = kind(**{field: values.pop(field) for field in own})
        command(**values)

    # Typer reads both: the order from the signature, the types from the annotations.
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run


def check_options(options: Any) -> None:
    """Raise UsageError if a field of a dataclass is not of its type, none of its choices, or outside its range."""
    from pydantic import Field, TypeAdapter, ValidationError  # slow

    for name, hint in get_type_hints(type(options), include_extras=True).items():
        kind, option = _find_option(hint) or (hint, Option(""))
        checked: Any = Annotated[kind, Field(ge=option.least, le=option.most)]
        try:
            TypeAdapter(checked).validate_python(getattr(options, name), strict=get_origin(kind) is not tuple)
        except ValidationError as error:
            flag, fault = option.flag or f"--{name.replace('_', '-')}", error.errors()[0]["msg"]
            raise UsageError(f"{flag} {getattr(options, name)!s:.40}: {fault[0].lower()}{fault[1:]}") from error


def _find_option(hint: Any) -> tuple[Any, Option] | None:
    """Return the type and the option of `Annotated[TYPE, Option(...)]`."""
    return next(((get_args(hint)[0], note) for note in get_args(hint)[1:] if isinstance(note, Option)), None)


def _read(typed: Any, kind: Any, option: Option) -> Any:
    """Return the value of a field for what Typer has parsed."""
    read = option.read or (lambda value: value)
    if get_origin(kind) is tuple:
        return tuple(map(read, typed or ()))
    return None if typed is None else read(typed)


def _make_parameter(name: str, default: Any, kind: Any, option: Option) -> Parameter:
    """Return a parameter for Typer."""
    import typer  # programs that only use the dataclasses need no command line

    # Typer knows no tuples of any length: the command line has lists, whose default is not shown.
    if get_origin(kind) is tuple:
        kind, default = list[str] | None, None
    # The flag is always named: for a bool, Typer would add its opposite.
    flag = option.flag or f"--{name.replace('_', '-')}"
    # A letter for a number: with names of types beside them, Typer cuts the names of options.
    metavar = option.metavar or ("N" if "int" in str(kind) else "X" if "float" in str(kind) else None)
    shown = typer.Option(
        flag, metavar=metavar, help=option.help, rich_help_panel=option.panel, min=option.least, max=option.most
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown])
