"""Colors: on a terminal that shows them, and nowhere else."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from manifests.options.help import paint, paint_changes, paint_outcomes


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stream:
        yield stream
    os.close(ours)


def test_only_a_terminal_gets_colors(terminal: TextIO, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert paint("lemur:", "bold red", terminal) == "\033[1;31mlemur:\033[0m"
    with (tmp_path / "file").open("w") as file:
        assert paint("lemur:", "bold red", file) == "lemur:"
    monkeypatch.setenv("TERM", "dumb")
    assert paint("lemur:", "red", terminal) == "lemur:"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("lemur:", "red", terminal) == "lemur:"


def test_outcomes_and_changes(terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", terminal)  # here: pytest replaces it after fixtures
    text = paint_outcomes("ok    torch: 2\nFAIL  disk: full\nokay  is a word")
    assert text == "\033[32mok\033[0m    torch: 2\n\033[31mFAIL\033[0m  disk: full\nokay  is a word"
    shown = paint_changes("name  -x\n\n--- a\n+++ b\n@@ -1 +1 @@\n same\n-old\n+new").split("\n")
    assert shown[:2] == ["name  -x", ""]
    colors = ["\033[31m", "\033[32m", "\033[36m", " same", "\033[31m", "\033[32m"]
    assert [line[: len(color)] for line, color in zip(shown[2:], colors, strict=True)] == colors
    assert paint_changes("nothing differs") == "nothing differs"
