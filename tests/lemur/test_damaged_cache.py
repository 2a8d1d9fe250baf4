"""Whatever happened to a part of the cache, the next command writes what it wrote before, with one note at most."""

import hashlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lemur_core.files.cache import remove_path
from lemur_core.sandbox import cached
from tests.builders import synthesis
from tests.lemur.test_command import some_rows, write_rows

Run = Callable[..., subprocess.CompletedProcess[str]]

COMMANDS = {
    "curate": ["curate", "rows.jsonl", "--graph", "off", "--jobs", 1, "--out", "out", "--force"],
    "extract": ["extract", "--source", "./alpha", "--out", "out", "--force"],
}
#: Files that state times.
TIMES = ("manifest.json", "report.md", "index.html", "files.json")


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def garble(path: Path) -> None:
    """As a bad page of the disk does."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3)
        file.write(random.Random(1).randbytes(min(4096, size // 3 + 1)))


def replace(path: Path) -> None:
    """Put a file in the place of a folder, or the other way round."""
    was_folder = path.is_dir()
    remove_path(path)
    path.write_text("x") if was_folder else path.mkdir()


HARM = (halve, garble, replace)


Harm = tuple[Path, Callable[[Path], None]]


def list_harm(cache: Path) -> Iterator[Harm]:
    """List what can be harmed, and how; the links to the runtime are read by a server alone."""
    for path in sorted(cache.rglob("*")):
        if not path.is_symlink() and "runtime-links" not in path.relative_to(cache).parts:
            yield from ((path, harm) for harm in ((replace,) if path.is_dir() else HARM))


def one_by_one(cache: Path) -> list[list[Harm]]:
    return [[harm] for harm in list_harm(cache)]


def all_at_once(cache: Path) -> list[list[Harm]]:
    return [[(path, harm) for path, harm in list_harm(cache) if harm is garble]]


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in TIMES)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(
    ("name", "choose"),
    [("curate", one_by_one), ("extract", all_at_once), pytest.param("extract", one_by_one, marks=pytest.mark.slow)],
)
def test_parts_that_are_damaged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lemur_here: Run,
    name: str,
    choose: Callable[[Path], list[list[Harm]]],
) -> None:
    (tmp_path / "alpha").mkdir()
    (tmp_path / "alpha" / "blocks.py").write_text(f"{synthesis.HEAD}{synthesis.TEXTS['GATE']}")
    (tmp_path / "alpha" / "empty.py").write_text("def (\n")
    write_rows(tmp_path / "rows.jsonl", some_rows())

    def run(cache: Path) -> tuple[dict[str, str], list[str]]:
        cached._known_digests.cache_clear()
        monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(cache))
        done = lemur_here(*COMMANDS[name], cwd=tmp_path)
        lines = done.stderr.splitlines()
        assert done.returncode == 0, done.stderr
        return digests(tmp_path / "out"), [line for line in lines if line.startswith("cache: ") or "Error" in line]

    whole = tmp_path / "whole"
    right = run(whole)
    assert run(whole) == right == (right[0], [])
    count = 0
    for chosen in choose(whole):
        shutil.copytree(whole, tmp_path / "harmed", symlinks=True)
        for path, harm in chosen:
            harm(tmp_path / "harmed" / path.relative_to(whole))
        written, notes = run(tmp_path / "harmed")
        assert (written, len(notes) <= len(chosen)) == (right[0], True), (chosen, notes)
        assert run(tmp_path / "harmed") == right, chosen
        shutil.rmtree(tmp_path / "harmed")
        count += len(notes)
    assert count
