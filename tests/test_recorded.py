"""What the documents show of commands that take minutes is what `python -m benchmarks.recorded` kept of a run."""

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent))  # the benchmarks are no part of what is installed

from benchmarks.recorded import FOLDER, RECORDS
from tests import test_examples, test_readme, test_tutorials

HERE = Path(__file__).parent

#: What is shown, neither run nor recorded, and why not.
NEITHER = {
    "lemur gate origin": "a contribution to LEMUR: tests/lemur/test_gate.py asserts what is printed of one",
}

SHOWN = [
    pytest.param(command, printed, id=f"{page.name}: {command[:40]}")
    for page in test_examples.PAGES
    for command, _, printed in test_readme.typed(page)
    if printed.strip() and test_examples.reason(command) and not command.startswith(tuple(NEITHER))
]


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_what_is_shown_was_printed(command: str, shown: str) -> None:
    (name,) = [record.name for record in RECORDS if record.command == command]
    ((kept, printed),) = test_tutorials.commands_in((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))
    assert kept == command
    test_tutorials.assert_shown(printed, shown)


def test_each_record_is_shown() -> None:
    assert {record.command for record in RECORDS} == {shown.values[0] for shown in SHOWN}
    assert {record.name for record in RECORDS} == {file.stem for file in FOLDER.glob("*.txt")}


def test_pages_state_the_figures_that_were_recorded() -> None:
    """What tables and sentences say of LEMUR's snapshot is what `make run` printed in a fresh clone."""
    printed = (FOLDER / "snapshot.txt").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^  (\w+) +([\d,]+)  ", printed, re.MULTILINE))
    kept, lexical, graph, traced = (rows[name] for name in ("kept", "lexical", "graph", "graphs"))
    stated = {
        "README.md": [f"| kept | 1,061 | {kept} |", f"| 0 of {lexical} |", f"| {traced} of {traced} |"],
        "docs/measured.md": [f"| {kept} |\n", f"| 0 of {lexical} |\n", f"| {traced} of {traced} |\n"],
        "docs/comparison.md": [f"that {graph} of LEMUR's networks compute what another one does"],
        "docs/graphs.md": [f"codes (torch 2.15) instead of {kept}."],
    }
    for page, sentences in stated.items():
        text = (HERE.parent / page).read_text(encoding="utf-8")
        assert [sentence for sentence in sentences if sentence not in text] == [], page
