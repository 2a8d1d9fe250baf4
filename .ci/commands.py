"""Writes the reference in docs/commands.md: every command with its arguments and options, from the parsers themselves.

    make commands

What stands above `_BEGIN` is written by hand and kept.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from lemur.cli import app
from manifests.options.help import describe, find_page, group_options, spell, split_help, split_parameters, value_name

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


if __name__ == "__main__":
    main()
