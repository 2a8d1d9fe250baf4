"""Provenance of the code in closed files and in assembled networks, and whether it may be redistributed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from manifests.provenance.licenses import is_permissive

#: The files of an extraction folder with its provenance.
TABLE, SPECS, REQUIREMENTS = "blocks.parquet", "specs.jsonl", "required_repos.json"
NAMES = "nn_block_names.json"  # of a run that only discovers: a list for `--names`
#: Its code folders: closed files, and their minimized forms.
FULL, MINIMIZED = "blocks/", "lean/"

#: The marker of a requirement that only an import suggests; installers skip a requirement with such a marker.
GUESS = 'extra == "guess"'

#: The end of an error that quotes a line of a block's file, and its replacement where that line is not shown.
QUOTED_LINE, LINE = r" \(line (\d+): (?s:.*)$", r" (line \1)"


def is_guess(requirement: str) -> bool:
    """Return whether a requirement of a block is only suggested by the name of an import.

    Args: requirement: as in column `requires` of the table, PEP 508.
    Returns: True if nothing that was installed says which distribution provides the import.
    """
    return requirement.endswith(GUESS)


def get_minimized_path(file: str) -> str:
    """Return the path of the minimized form of a block from that of its closed file.

    Args: file: as in column `file` of the table: `blocks/NAME.py`.
    Returns: a path relative to the folder, whether there is such a form or not.
    """
    return MINIMIZED + file.removeprefix(FULL)


def find_blocking_licenses(licenses: set[str]) -> list[str]:
    """Return the licenses that are unknown or not permissive: code under one may not be redistributed.

    Args: licenses: SPDX expressions.
    Returns: the expressions, sorted; empty if everything may be redistributed.
    """
    return sorted(name for name in licenses if not is_permissive(name))


def without_source(error: str) -> str:
    """Remove the source line that an error of a block quotes, but keep its line number.

    Args: error: the error in the block's row.
    Returns: a text that may be published where the code may not.
    """
    return re.sub(QUOTED_LINE, LINE, error)


#: The beginning of the comment above the block of a slot.
SLOT_HEADING = "Slot "
#: The comment above the block of a slot, of fields of the block's row; and the fields that are not any text.
_PROVENANCE = f"""{SLOT_HEADING}{{slot}}: {{name}}.

Block:   {{block}}
File:    {{path}}, lines {{start_line}}-{{end_line}}
SWHID:   {{swhid}}
Licence: {{license}}
SHA-256: {{code_sha256}} (of the extracted file)"""
_FIELDS = {"slot": r"\S+", "start_line": r"\d+", "end_line": r"\d+", "code_sha256": "[0-9a-f]{64}"}


def provenance_lines(slot: str, name: str, facts: Mapping[str, object]) -> tuple[str, ...]:
    """Return the provenance of the block of a slot, as comment lines that `find_inlined_blocks` reads.

    Args: slot, name: the names of the slot and of the block that fills it. facts: fields of the block's row: `block`,
        `path`, `start_line`, `end_line`, `swhid`, `license`, `code_sha256`.
    Returns: lines without `#`.
    """
    return tuple(_PROVENANCE.format_map({**facts, "slot": slot, "name": name}).split("\n"))


def header_lines(code: str) -> list[str]:
    """Return the comment lines at the top of a file, unchanged.

    Args: code: the text of the file.
    Returns: the lines with their `#`, up to the first that is not a comment; a blank line ends them.
    """
    return list(takewhile(lambda line: line.startswith("#"), code.split("\n")))


def _match_field(field: re.Match[str]) -> str:
    return f"(?P<{field[1]}>{_FIELDS.get(field[1], '.+')})"


_COMMENT = re.sub(r"^", "# ", _PROVENANCE, flags=re.MULTILINE).replace("# \n", "#\n")
_COMMENTS = re.compile("^" + re.sub(r"\\{(\w+)\\}", _match_field, re.escape(_COMMENT)), re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Inlined:
    """One block in a network's file, and its provenance."""

    slot: str
    block: str
    path: str
    lines: tuple[int, int]
    swhid: str
    license: str
    code_sha256: str  # of the extracted file
    line: int  # of the comment, in the network's file


def find_inlined_blocks(code: str) -> list[Inlined]:
    """Return the blocks that a network's file names; none for a file that was not assembled.

    Args: code: the text of the file, whose comments `provenance_lines` wrote.
    Returns: the blocks in the order of the file.
    """
    return [
        Inlined(
            **{name: match[name] for name in ("slot", "block", "path", "swhid", "license", "code_sha256")},
            lines=(int(match["start_line"]), int(match["end_line"])),
            line=code.count("\n", 0, match.start()) + 1,
        )
        for match in _COMMENTS.finditer(code)
    ]
