"""Writes docs/columns.md: the columns of every table, with type and meaning, from the record types themselves.

    make columns

The schemas in `manifests/schemas` are written from the same types.
"""

import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from manifests.records import RECORD_TYPES, Record

PAGE = Path(__file__).parents[1] / "docs" / "columns.md"
_HEAD = """# Columns of all files

Written by `make columns` from the record types in `manifests/records`; not to be edited.
`?` marks a column that may be null. JSON Schemas of the same types are in `manifests/schemas`.
[Files](formats.md) lists what each folder contains.
"""

#: The files that hold records of each type, by kind of folder.
_FILES = {
    "Snapshot": {
        "LemurRecord": "data/records/*.parquet",
        "NetworkRow": "networks.parquet",
        "Decision": "decisions.parquet",
        "GraphRow": "graphs.parquet",
        "Stat": "data/stats/*.parquet",
        "ChatRow": "data/chat/*.parquet",
        "ChatDrop": "chat_drops.parquet",
    },
    "Extraction": {
        "Block": "blocks.parquet",
        "Observed": "blocks.parquet, column observed (JSON)",
        "Spec": "specs.jsonl",
        "Algorithm": "specs.jsonl, key algorithm",
        "SpecRow": "data/specs/*.parquet",
        "SpecChatRow": "data/chat/*.parquet",
        "SpecChatDrop": "chat_drops.parquet",
    },
    "Training run": {"TrainingRecord": "record.json", "Ingredient": "record.json, key ingredients"},
    "Synthesis": {"SynthesisAttempt": "attempts.parquet", "Synthesized": "data/records/*.parquet"},
    "Experts": {"ExpertFact": "data/facts.parquet", "ExpertAnswer": "evaluation/answers.parquet"},
}


def main() -> None:
    """Write the page."""
    PAGE.write_text(page_text(), encoding="utf-8")


def page_text() -> str:
    """Return the page. Raises: KeyError if a record type is in no file of `_FILES`."""
    types = {record.__name__: record for record in RECORD_TYPES}
    parts = [_HEAD]
    for folder, files in _FILES.items():
        parts.append(f"\n## {folder}\n")
        parts += [record_text(types.pop(name), file) for name, file in files.items()]
    if types:
        raise KeyError(f"no file is stated for {', '.join(types)}")
    return "".join(parts)


def record_text(record: type[Record], file: str) -> str:
    """Return the table of one record type; a field without a description has an empty cell."""
    about = " ".join((record.__doc__ or "").split())
    lines = [f"\n### `{file}`\n", f"{about}\n", "| column | type | meaning |", "|---|---|---|"]
    for name, info in record.model_fields.items():
        meaning = (info.description or "").replace("|", "\\|")
        lines.append(f"| `{name}` | {_spell(info.annotation)} | {meaning} |")
    return "\n".join(lines) + "\n"


_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", dict: "mapping", tuple: "list"}


def _spell(annotation: Any) -> str:
    """Return the type of a field in words; `?` where it may be null."""
    arguments = typing.get_args(annotation)
    if type(None) in arguments:
        return _spell(next(item for item in arguments if item is not type(None))).rstrip("?") + "?"
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _spell(arguments[0])
    if origin is Literal:
        return _NAMES[type(arguments[0])]
    return _NAMES.get(origin or annotation, "JSON")


if __name__ == "__main__":
    main()
