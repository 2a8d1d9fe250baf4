"""The tutorials, run as they stand: files are written, commands run, and what they print is what the page shows.

`...` in a page stands for any text: seconds, digests, what is left out.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.slow


def commands_in(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and what it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def assert_shown(printed: str, shown: str) -> None:
    pattern = ".*?".join(map(re.escape, re.split(r"^\.\.\.\n|\.\.\.", shown, flags=re.MULTILINE)))
    assert re.fullmatch(pattern + r"\s*", printed, re.DOTALL), f"{printed}\n--- is not ---\n{shown}"


def run_page(name: str, place: Path) -> None:
    """Do what a page says, in a folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for kind, title, body in _FENCE.findall((DOCS / name).read_text(encoding="utf-8")):
        if title:
            (place / title).parent.mkdir(parents=True, exist_ok=True)
            (place / title).write_text(body, encoding="utf-8")
        elif kind == "console":
            for command, shown in commands_in(body):
                done = subprocess.run(
                    ["bash", "-c", command], cwd=place, env={**os.environ, "PATH": path}, capture_output=True, text=True
                )
                assert done.returncode == 0, done.stderr
                assert_shown(done.stdout, shown)


def test_extraction_then_training(tmp_path: Path) -> None:
    run_page("tutorial-extraction.md", tmp_path)
    run_page("tutorial-training.md", tmp_path)


@pytest.mark.network
def test_snapshot(tmp_path: Path, lemur_wheel: Path) -> None:
    run_page("tutorial-snapshot.md", tmp_path)


@pytest.mark.parametrize(("printed", "shown"), [("a\nb\n", "a\n"), ("a\n", "...\nb\n"), ("1.5 s\n", "... m\n")])
def test_what_is_not_shown_is_a_failure(printed: str, shown: str) -> None:
    with pytest.raises(AssertionError):
        assert_shown(printed, shown)
