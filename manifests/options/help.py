"""Print the help of a command: every option whole, values by name, an example at the end.

    lemur explain --help

    Usage: lemur explain DIR NAME|ID [OPTIONS]
    ...
    Options
      --json             Print the summary as one JSON object.

Typer's own tables cut long names of options at 80 columns and show the types of Python.
"""

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum, EnumType
from types import NoneType
from typing import Any, Literal, TextIO, cast, get_args, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

#: Columns of the terminal that a page of help uses at most; wider lines are hard to read.
_WIDEST = 100
#: Columns of names; the help of a longer name begins on the line below it.
_NAMES = 30
#: A longer list of choices stands in the help, not in the name.
_CHOICES = 24
#: The line of a docstring from which on it holds examples.
_EXAMPLES = "Examples:"
#: The page below docs/ about a command, or about a group of commands.
_PAGES = {
    "demo": "pipeline",
    **dict.fromkeys(("extract", "list", "migrate", "show"), "extraction"),
    "search": "specs",
    **dict.fromkeys(("rebuild", "novel"), "graphs"),
    "curate": "sources",
    "train": "training",
    "synthesize": "synthesis",
    "verify": "guarantees",
    "open": "page",
    "trace": "provenance",
    **dict.fromkeys(("export", "publish", "pull"), "publishing"),
    "doctor": "install",
    **dict.fromkeys(("explain", "cache"), "faq"),
}


class HelpCommand(TyperCommand):
    """A command with this help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; the formatter of the line parser stays empty."""
        del formatter
        arguments, options = split_parameters(self)
        names = " ".join([ctx.command_path, *(value_name(item, self) for item in arguments), "[OPTIONS]"])
        with _open_console() as console:
            _print_head(console, names, self)
            if arguments:
                _print_rows(
                    console, "Arguments", [(value_name(item, self), describe(item, self)) for item in arguments]
                )
            for panel, items in group_options([*options, *_help_option(self, ctx)]).items():
                _print_rows(console, panel or "Options", [(spell(item, self), describe(item, self)) for item in items])
            if examples := split_help(self)[1]:
                console.print(Text("\nExamples", style="bold"), soft_wrap=True)
                console.print(Text("\n".join(f"  {line}" for line in examples)), soft_wrap=True)
            console.print(f"\nMore: {find_page(ctx.command_path)}", soft_wrap=True)


class HelpGroup(TyperGroup):
    """A group of commands with this help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help: the commands by panels in their order, then the options."""
        del formatter
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.commands[name]
            if not command.hidden:
                panels.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append(
                    (name, split_help(command)[0])
                )
        with _open_console() as console:
            _print_head(console, f"{ctx.command_path} COMMAND [OPTIONS]", self)
            for panel, rows in panels.items():
                _print_rows(console, panel, rows)
            options = [item for item in self.params if not getattr(item, "hidden", False)]
            rows = [(spell(item, self), describe(item, self)) for item in [*options, *_help_option(self, ctx)]]
            _print_rows(console, "Options", rows)


class CommandLine(typer.Typer):
    """A set of commands; `HelpCommand` prints the help of each, `HelpGroup` that of the set."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**({"cls": HelpGroup} | settings))

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Return a decorator that adds a function as a command, with the settings of `typer.Typer.command`."""
        return super().command(name, **({"cls": HelpCommand} | settings))


def find_page(command: str) -> str:
    """Return the page about a command such as `lemur train run`, from the root of the repository."""
    name = command.split()[1]
    return f"docs/{_PAGES.get(name, name)}.md"


# --- what the help and the reference say of a parameter -----------------------------------------------------------


def split_parameters(command: Any) -> tuple[list[Any], list[Any]]:
    """Return the arguments and the options of a command, without hidden ones."""
    shown = [item for item in command.params if not getattr(item, "hidden", False)]
    arguments = [item for item in shown if not item.opts[0].startswith("-")]
    return arguments, [item for item in shown if item.opts[0].startswith("-")]


def group_options(options: list[Any]) -> dict[str, list[Any]]:
    """Return the options by panel; those without one first, under an empty name."""
    panels: dict[str, list[Any]] = {"": []}
    for item in options:
        panels.setdefault(getattr(item, "rich_help_panel", None) or "", []).append(item)
    return {panel: items for panel, items in panels.items() if items}


def split_help(command: Any) -> tuple[str, list[str]]:
    """Return the description of a command, and the lines of its examples."""
    text, _, examples = inspect.cleandoc(command.help or "").partition(f"\n{_EXAMPLES}\n")
    return " ".join(text.split()), [line.strip() for line in examples.splitlines() if line.strip()]


def spell(item: Any, command: Any) -> str:
    """Return all spellings of an option, and the name of its value."""
    # In a fixed order: the parser keeps the names of --help in a set.
    flags = ", ".join(sorted([*item.opts, *item.secondary_opts], key=lambda flag: not flag.startswith("--")))
    return flags if getattr(item, "is_flag", False) else f"{flags} {value_name(item, command)}"


def value_name(item: Any, command: Any) -> str:
    """Return what stands for the value of a parameter: its name, its choices, or a letter for a number."""
    if item.metavar:
        name = str(item.metavar)
    elif choices := "|".join(_list_choices(item, command)):
        name = choices if len(choices) <= _CHOICES else item.opts[0].lstrip("-").upper()
    else:
        name = {int: "N", float: "X"}.get(_find_type(item, command), "TEXT")
    if item.opts[0].startswith("-"):
        return name
    return f"{name if item.required else f'[{name}]'}{'...' if item.nargs == -1 else ''}"


def describe(item: Any, command: Any) -> str:
    """Return the help of a parameter with its long choices, and its default or that it is required."""
    sentences = [(item.help or "").replace("\\[", "[")]
    choices = [] if item.metavar else list(_list_choices(item, command))
    if len("|".join(choices)) > _CHOICES:
        sentences.append(f"One of {', '.join(choices)}.")
    if item.required and item.opts[0].startswith("-"):
        sentences.append("Required.")
    elif item.show_default and not getattr(item, "is_flag", False) and item.default not in (None, False, "", [], ()):
        sentences.append(f"Default: {getattr(item.default, 'value', item.default)}.")
    return " ".join(sentence for sentence in sentences if sentence)


def _find_type(item: Any, command: Any) -> Any:
    hint = get_type_hints(command.callback).get(item.name, str) if command.callback else str
    if get_origin(hint) is Literal:
        return hint
    return next((part for part in get_args(hint) if part is not NoneType), hint)


def _list_choices(item: Any, command: Any) -> Iterator[str]:
    kind = _find_type(item, command)
    if isinstance(kind, EnumType):
        yield from (str(member.value) for member in cast("type[Enum]", kind))
    elif get_origin(kind) is Literal:
        yield from get_args(kind)


# --- printing --------------------------------------------------------------------------------------------------------


def _open_console() -> Console:
    console = Console(highlight=False)
    console.width = min(console.width, _WIDEST)
    return console


def _help_option(command: Any, ctx: Any) -> list[Any]:
    option = command.get_help_option(ctx)
    return [] if option is None else [option]


def _print_head(console: Console, usage: str, command: Any) -> None:
    console.print(Text.assemble(("Usage: ", "bold"), usage), soft_wrap=True)
    console.print()
    for line in _wrap(split_help(command)[0], console.width - 2):
        console.print(Text(f"  {line}"), soft_wrap=True)


def _print_rows(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    """Print names in one column and their help in the other; a long name has a line of its own."""
    console.print(Text(f"\n{title}", style="bold"), soft_wrap=True)
    width = min(_NAMES, max(len(name) for name, _ in rows))
    for name, text in rows:
        lines = _wrap(text, console.width - width - 4)
        if len(name) > width:
            lines.insert(0, "")
        for number, line in enumerate(lines):
            shown = name if number == 0 else ""
            console.print(Text.assemble("  ", (f"{shown:<{width}}", "cyan"), f"  {line}".rstrip()), soft_wrap=True)


def _wrap(text: str, width: int) -> list[str]:
    # Names of options and files stay whole.
    return textwrap.wrap(text, max(width, 20), break_on_hyphens=False, break_long_words=False) or [""]


# Colors of what is printed on a terminal: outcomes of checks, and differences of codes. `NO_COLOR` turns them off.

_CODES = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold red": "1;31"}
_OUTCOMES = {"ok": "green", "pass": "green", "note": "yellow", "FAIL": "red"}
_OUTCOME = re.compile(rf"^({'|'.join(_OUTCOMES)})(?= )", re.MULTILINE)
_CHANGES = {"+": "green", "-": "red", "@": "cyan"}


def paint(text: str, color: str, stream: TextIO | None = None) -> str:
    """Return the text in a color if the stream is a terminal that shows colors.

    Args: color: `red`, `green`, `yellow`, `cyan` or `bold red`; stream: default: stdout.
    Returns: the text, between escape sequences or as it is.
    """
    shown = (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"
    return f"\033[{_CODES[color]}m{text}\033[0m" if shown and not os.environ.get("NO_COLOR") else text


def paint_outcomes(text: str) -> str:
    """Return lines that begin with `ok`, `pass`, `note` or `FAIL`, with that word in color on a terminal.

    Args: text: lines for stdout.
    Returns: the same lines.
    """
    return _OUTCOME.sub(lambda word: paint(word[0], _OUTCOMES[word[0]]), text)


def paint_changes(text: str) -> str:
    """Return text that ends with a unified difference, with the changes in color on a terminal.

    Args: text: lines for stdout, with at most one difference.
    Returns: the same lines.
    """
    before, header, changes = text.partition("\n--- ")
    lines = f"{header[1:]}{changes}".split("\n") if header else []
    return "\n".join([before, *(paint(line, _CHANGES[line[0]]) if line[:1] in _CHANGES else line for line in lines)])
