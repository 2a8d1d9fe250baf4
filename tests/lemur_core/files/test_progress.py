"""Progress: the lines that are shown where there is no terminal."""

import time

import pytest

from lemur_core.files.progress import progress, show_longest

VISIBLE = "a\\x1b[2Jb\\n" + "c" * 49


def test_it_names_what_has_been_running_longest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the innermost display, every five seconds at first, then less often; its name is foreign text."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    show_longest("nobody looks", 9)
    with progress("graphs", 1000, "networks") as advance, progress("inner", 2, "things"):
        advance(3)
        for seconds in (4, 6, 8, 12, 100, 120, 140):
            now = float(seconds)
            show_longest("a\x1b[2Jb\n" + "c" * 100, now)
    lines = capsys.readouterr().err.splitlines()
    assert len(VISIBLE) == 60
    assert lines[:4] == [f"inner: 0 of 2 things; longest: {VISIBLE}, {seconds} s" for seconds in (6, 12, 100, 140)]
    assert lines[4:] == ["inner: 0 things in 140.0 s", "graphs: 3 networks in 140.0 s"]
