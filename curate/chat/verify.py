"""`lemur verify` of conversations about records: proves from the folder alone that they fit their records."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from curate.chat.complete import MARK, put_back
from curate.chat.network import parse
from manifests.checks import Check
from manifests.conversations.conversation import fenced_codes
from manifests.conversations.verify import Row, check_rows, contents, form_faults
from manifests.manifest import Manifest
from manifests.records import CHAT_KINDS

_ONE_CODE = frozenset({"design", "complete", "repair", "change"})


def check_chat(folder: Path, manifest: Manifest) -> list[Check]:
    """The checks of a snapshot with conversations; its tables have the right columns already."""
    facts = "chat code", ", the code in their answers parses and fits their records"
    return check_rows(folder, manifest, "record", _splits(folder), CHAT_KINDS, _faults, facts)


def _splits(folder: Path) -> dict[str, str]:
    """The split of each kept record, by the file that holds it."""
    found = {}
    for path in sorted(folder.glob("data/records/*.parquet")):
        for id_ in pq.read_table(path, columns=["id"]).column("id").to_pylist():
            found[id_] = path.name.partition("-")[0]
    return found


def _faults(row: Row) -> Iterator[str]:
    """What is wrong with one conversation: its form, its code, and whether the code is that of its record."""
    yield from form_faults(row, "record")
    _, user, assistant = contents(row)
    asked, answered = fenced_codes(user), fenced_codes(assistant)
    if len(answered) != (row["task"] in _ONE_CODE):
        yield f"{len(answered)} code blocks in the answer"
        return
    for code in answered:
        try:
            parse(code)
        except (SyntaxError, ValueError) as error:
            yield f"a code block of the answer does not parse: {str(error).splitlines()[0]}"
    if asked == answered:
        yield "the code of its answer is that of its question"
    if not _is_file(row, asked, answered):
        yield "the file in it is not that of its record"


def _is_file(row: Row, asked: list[str], answered: list[str]) -> bool:
    """Whether the record's file is where the kind of request has it; a newline at its end may have been added."""
    if row["task"] in ("design", "repair"):
        text = answered[0]
    elif len(asked) != 1:
        return False
    elif row["task"] == "complete":
        if MARK not in asked[0]:
            return False
        text = put_back(asked[0], answered[0].removesuffix("\n"))
    else:
        text = asked[0]
    texts = (text, text.removesuffix("\n"))
    return row["record"] in {hashlib.sha256(item.encode()).hexdigest() for item in texts}
