"""Writes the reference in docs/commands.md: every command with its arguments and options, from the parsers themselves.

    make commands

What stands above `_BEGIN` is written by hand and kept.
"""

import inspect
from collections.abc import Iterator
from enum import Enum, EnumType
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import typer

from lemur.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
_BEGIN = "<!-- Below: written by `make commands`; not to be edited. -->\n"
#: Options of several commands, which stand once; `--help` says what each of them does there.
_SHARED = {
    "--force": "Replace what stands at the output; a study or the demo is continued with the new settings.",
    "--jobs": "Number of worker processes; default: all cores.",
    "--json": "Print the result as JSON.",
    "--runtime": "A package that foreign code can import besides torch, torchvision and numpy; `lemur-nets`: those of"
    " LEMUR's networks (repeatable).",
    "--unsafe-no-sandbox": "Run foreign code without the sandbox. Only for code you trust.",
}

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
    "diff": "gate",
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


def main() -> None:
    """Write the page again."""
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page_text(text: str) -> str:
    """Return the page with its reference up to date."""
    by_hand, _, _ = text.partition(_BEGIN)
    root = typer.main.get_command(app)
    shared = "".join(f"| `{name}` | {text} |\n" for name, text in _SHARED.items())
    sections = "".join(command_text(name, command) for name, command in list_commands(root, "lemur"))
    return f"{by_hand}{_BEGIN}\n## Shared options\n\n| | |\n|---|---|\n{shared}{sections}"


def list_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands with their full names, in the order of --help."""
    if command.hidden:
        return
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner in command.list_commands(None):
        yield from list_commands(command.commands[inner], f"{name} {inner}")


def command_text(name: str, command: Any) -> str:
    """Return the section of one command."""
    arguments, options = split_parameters(command)
    usage = " ".join([name, *(value_name(item, command) for item in arguments), "[OPTIONS]"])
    text, examples = split_help(command)
    page = find_page(name).partition("/")[2]
    lines = [f"\n## {name}\n", f"{text} [More]({page}).\n", f"`{usage}`\n"]
    lines += ["```console", *(f"$ {example}" for example in examples), "```\n"] if examples else []
    rows = [_row(value_name(item, command), item, command) for item in arguments]
    shared = [name for name in _SHARED if any(name in item.opts for item in options)]
    for panel, items in group_options([item for item in options if not _SHARED.keys() & set(item.opts)]).items():
        rows += [f"| *{panel}* | |"] if panel else []
        rows += [_row(spell(item, command), item, command) for item in items]
    lines += ["| | |", "|---|---|", *rows] if rows else []
    if shared:
        named = ", ".join(f"`{name}`" for name in shared)
        lines += [*([""] if rows else []), f"[Shared](#shared-options): {named}."]
    return "\n".join(lines) + "\n"


def _row(name: str, item: Any, command: Any) -> str:
    """Return one row of a table; a bar would end its cell."""
    name, text = (cell.replace("|", "\\|") for cell in (name, describe(item, command)))
    return f"| `{name}` | {text} |"


def find_page(command: str) -> str:
    """Return the page about a command such as `lemur train run`, from the root of the repository."""
    name = command.split()[1]
    return f"docs/{_PAGES.get(name, name)}.md"


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


if __name__ == "__main__":
    main()
