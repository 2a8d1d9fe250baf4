"""Writes the reference in docs/commands.md: every command with its arguments and options, from the parsers themselves.

    make commands

What stands above `_BEGIN` is written by hand and kept.
"""

from collections.abc import Iterator
from enum import EnumType
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from lemur.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
_BEGIN = "<!-- Below: written by `make commands`; not to be edited. -->\n"


def main() -> None:
    """Write the page again."""
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page_text(text: str) -> str:
    """Return the page with its reference up to date."""
    by_hand, _, _ = text.partition(_BEGIN)
    root = typer.main.get_command(app)
    return by_hand + _BEGIN + "".join(command_text(name, command) for name, command in list_commands(root, "lemur"))


def list_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands with their full names, in the order of --help."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner in command.list_commands(None):
        yield from list_commands(command.commands[inner], f"{name} {inner}")


def command_text(name: str, command: Any) -> str:
    """Return the section of one command."""
    arguments = [item for item in command.params if not item.opts[0].startswith("-")]
    options = [item for item in command.params if item.opts[0].startswith("-")]
    panels: dict[str, list[Any]] = {"": list(arguments)}
    for item in options:
        panels.setdefault(item.rich_help_panel or "", []).append(item)
    hints = get_type_hints(command.callback)
    words = " ".join([name, *(_value_name(item, hints) for item in arguments), "[OPTIONS]"])
    lines = [f"\n## {name}\n", f"{' '.join(command.help.split())}\n", f"`{words}`\n", "| | |", "|---|---|"]
    for panel, items in panels.items():
        lines += [f"| *{panel}* | |"] if panel else []
        lines += [f"| `{_spelling(item, hints)}` | {_meaning(item)} |" for item in items]
    return "\n".join(lines) + "\n"


def _spelling(item: Any, hints: dict[str, Any]) -> str:
    if not item.opts[0].startswith("-"):
        return _value_name(item, hints)
    flags = ", ".join([*item.opts, *item.secondary_opts])
    return flags if item.is_flag else f"{flags} {_value_name(item, hints)}"


def _value_name(item: Any, hints: dict[str, Any]) -> str:
    """Return what stands for the value; a bar would end the cell of the table."""
    kind = next((part for part in get_args(hints[item.name]) if part is not NoneType), hints[item.name])
    if get_origin(hints[item.name]) is Literal:
        kind = hints[item.name]
    choices = list(kind) if isinstance(kind, EnumType) else get_args(kind) if get_origin(kind) is Literal else ()
    name = item.metavar or "|".join(choices) or {int: "N", float: "X"}.get(kind, "TEXT")
    return name.replace("|", "\\|")


def _meaning(item: Any) -> str:
    text = (item.help or "").replace("\\[", "[").replace("|", "\\|")
    shows = item.show_default and item.default not in (None, False, "", [], ())
    default = f" Default: {getattr(item.default, 'value', item.default)}." if shows and not item.is_flag else ""
    return f"{text}{' Required.' if item.required else default}".strip()


if __name__ == "__main__":
    main()
