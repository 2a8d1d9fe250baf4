"""What the documents show of commands that take minutes is what `python -m benchmarks.recorded` kept of a run."""

import pytest

from benchmarks.recorded import FOLDER, RECORDS
from tests import test_examples, test_readme, test_tutorials

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
