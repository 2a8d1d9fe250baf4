"""Whatever lies in a finished folder, each command that reads it does its work or prints one clear line.

The damage is drawn from a seed (`tests/builders/damage.py`); the slow part draws 120 folders.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lemur.folders import DEMO
from tests.builders import synthesis
from tests.builders.damage import copy, damage
from tests.builders.finished import write_all
from tests.builders.suites import table
from tests.lemur.test_command import some_rows, write_rows

Lemur = Callable[..., subprocess.CompletedProcess[str]]

#: An item of each folder of `write_all`, as `lemur show` finds it.
ITEMS = {
    "blocks": "SqueezeGate", "snapshot": "a-two", "run": "net", "ablation": "full-seed0", "synthesis": "syn", "facts": "alpha",
    "evaluation": "alpha",
}  # fmt: skip
_SECONDS = 120


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("whole") / "all")


def commands(name: str, folder: Path, out: Path, rows: Path) -> list[list[object]]:
    """The commands that read a folder of this kind. Args: out, rows: a folder to write to, and records to curate."""
    item, new = ITEMS[name], out / "new"
    curate: list[object] = ["curate", "--out", new, "--jobs", 1, "--graph", "off"]
    register: list[object] = ["train", "register", folder, "--db", out / "register"]
    every: list[list[object]] = [
        ["verify", folder, "--jobs", 1],
        ["open", folder, "--no-browser"],
        ["show", item, "--in", folder],
        ["publish", folder, "--repo-id", "nobody/none", "--dry-run"],
    ]
    extraction: list[list[object]] = [
        ["search", "gate", "--in", folder, "--spec", out / "spec.json"],
        ["search", "--like", item, "--in", folder],
        [*curate, folder],
        [*curate, rows, "--origins", folder],
    ]
    snapshot: list[list[object]] = [["show", item, "--in", folder, "--graph", out / "graph.svg"]]
    more = {"blocks": extraction, "snapshot": snapshot, "run": [register]}
    return [*every, *more.get(name, [*every[:3], [*curate, folder]] if name == "synthesis" else ())]


class _TooLate(BaseException):
    """A command waits for something."""


@pytest.fixture
def in_time() -> Iterator[Callable[[], None]]:
    """Restart the clock of a command; one that hangs, on a pipe for example, is a failure."""

    def give_up(*_: object) -> None:
        raise _TooLate

    before = signal.signal(signal.SIGALRM, give_up)
    yield lambda: signal.alarm(_SECONDS) and None
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def try_folder(
    seed: str, folders: dict[str, Path], out: Path, run: Lemur, restart: Callable[[], None], most: int
) -> str | None:
    """Damage one folder, read it by some commands, and return what is wrong with what they say, if anything."""
    draw = random.Random(seed)
    name = draw.choice(sorted(folders))
    out.mkdir()
    folder = copy(folders[name], out / folders[name].name)
    what = damage(folder, draw)
    possible = commands(name, folder, out, folders["snapshot"].parent / "more.jsonl")
    for command in draw.sample(possible, min(len(possible), most)):
        restart()
        where = f"{seed}: {name}/{what}: lemur {' '.join(map(str, command))}"
        try:
            done = run(*command, cwd=out)
        except (Exception, _TooLate) as error:
            raise AssertionError(where) from error
        said = done.stderr.strip().splitlines()
        if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr or "\x1b" in done.stderr + done.stdout:
            return f"{where}: {done.returncode}: {done.stderr[-500:]}"
        if done.returncode == 1 and not said[-1].startswith("lemur: "):
            return f"{where}: no line says why: {done.stderr[-500:]}"
    return None


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("manifests.publishing.hub.Hub.call", _unreachable)


def _unreachable(*_: object, **__: object) -> None:
    from lemur_core.files.errors import RetryableError

    raise RetryableError("the Hub cannot be reached; run again")


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(("seed", "count"), [(0, 24), *(pytest.param(n, 60, marks=pytest.mark.slow) for n in (1, 2))])
def test_damaged_folders(
    seed: int, count: int, folders: dict[str, Path], tmp_path: Path, lemur_here: Lemur, in_time: Callable[[], None]
) -> None:
    wrong = [try_folder(f"{seed} {n}", folders, tmp_path / str(n), lemur_here, in_time, 1) for n in range(count)]
    assert [fault for fault in wrong if fault] == []


@table(__file__, "damaged.md", "A check that cannot be made fails", globals())
def test_a_check_that_cannot_be_made_fails(
    folders: dict[str, Path], tmp_path: Path, lemur_here: Lemur, keys: tuple[str, ...], value: object, said: str
) -> None:
    folder = copy(folders["snapshot"], tmp_path / "snapshot")
    stated = at = json.loads((folder / "manifest.json").read_text())
    for key in keys[:-1]:
        at = at[key]
    if value is ...:
        del at[keys[-1]]
    else:
        at[keys[-1]] = value
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_text(json.dumps(stated))
    done = lemur_here("verify", folder, "--jobs", 1, cwd=tmp_path)
    assert done.returncode == 1
    (line, *_) = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert done.stdout.startswith("ok    digests"), "what can be checked is"
    assert said in line


LINKS: dict[str, Callable[[Path, Path], object]] = {
    "the same content": lambda path, other: path.rename(other) and path.symlink_to(other),
    "nothing": lambda path, other: path.unlink() or path.symlink_to(other),
    "a folder": lambda path, other: path.with_name("more").symlink_to("/etc"),
    "a file of the folder": lambda path, other: path.with_name("more.txt").symlink_to(path.name),
    "itself": lambda path, other: path.with_name("more.txt").symlink_to("more.txt"),
}


@pytest.mark.parametrize("what", LINKS)
def test_a_link_is_no_file_of_a_folder(folders: dict[str, Path], tmp_path: Path, lemur_here: Lemur, what: str) -> None:
    """Of every kind of folder."""
    for name in folders if what == "the same content" else ["ablation"]:
        folder = copy(folders[name], tmp_path / folders[name].name)
        first = json.loads((folder / "manifest.json").read_text())["outputs"][0]["path"]
        LINKS[what](folder / first, tmp_path / f"{name}.outside")
        done = lemur_here("verify", folder, "--jobs", 1, cwd=tmp_path)
        (link,) = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink())
        assert done.returncode == 1
        assert f" {link} is a link" in done.stdout, (name, done.stdout)
        assert "Traceback" not in done.stderr


def test_a_link_in_the_folder_of_a_whole_run(folders: dict[str, Path], tmp_path: Path, lemur_here: Lemur) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / DEMO).write_text("{}")
    copy(folders["ablation"], run / "grid")
    assert lemur_here("verify", run, "--jobs", 1, cwd=tmp_path).returncode == 0
    (run / "grid").rename(tmp_path / "elsewhere")
    (run / "grid").symlink_to(tmp_path / "elsewhere")
    done = lemur_here("verify", run, "--jobs", 1, cwd=tmp_path)
    assert done.returncode == 1
    assert "grid is a link" in done.stdout


# Whatever happened to a part of the cache, the next command writes what it wrote before, with one note at most.


COMMANDS = {
    "curate": ["curate", "rows.jsonl", "--graph", "off", "--jobs", 1, "--out", "out", "--force"],
    "extract": ["extract", "--source", "./alpha", "--out", "out", "--force"],
}
#: Files that state times.
TIMES = ("manifest.json", "report.md", "index.html")


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def garble(path: Path) -> None:
    """As a bad page of the disk does."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3)
        file.write(random.Random(1).randbytes(min(4096, size // 3 + 1)))


HARM = (halve, garble)
Harm = tuple[Path, Callable[[Path], None]]


def list_harm(cache: Path) -> Iterator[Harm]:
    """List the files that can be harmed, and how; the links to the runtime are read by a server alone."""
    for path in sorted(cache.rglob("*")):
        if path.is_file() and not path.is_symlink() and "runtime-links" not in path.relative_to(cache).parts:
            yield from ((path, harm) for harm in HARM)


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in TIMES)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(
    ("name", "at_once"),
    [("curate", False), *(pytest.param("extract", at_once, marks=pytest.mark.slow) for at_once in (True, False))],
)
def test_parts_that_are_damaged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lemur_here: Lemur,
    name: str,
    at_once: bool,
) -> None:
    (tmp_path / "alpha").mkdir()
    (tmp_path / "alpha" / "blocks.py").write_text(f"{synthesis.HEAD}{synthesis.TEXTS['GATE']}")
    (tmp_path / "alpha" / "empty.py").write_text("def (\n")
    write_rows(tmp_path / "rows.jsonl", some_rows())

    def run(cache: Path) -> tuple[dict[str, str], list[str]]:
        monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(cache))
        done = lemur_here(*COMMANDS[name], cwd=tmp_path)
        lines = done.stderr.splitlines()
        assert done.returncode == 0, done.stderr
        return digests(tmp_path / "out"), [line for line in lines if line.startswith("cache: ") or "Error" in line]

    whole = tmp_path / "whole"
    right = run(whole)
    assert run(whole) == right == (right[0], [])
    count = 0
    every = [one for one in list_harm(whole) if name == "curate" or one[1] is garble]
    for chosen in [every] if at_once else [[one] for one in every]:
        shutil.copytree(whole, tmp_path / "harmed", symlinks=True)
        for path, harm in chosen:
            harm(tmp_path / "harmed" / path.relative_to(whole))
        written, notes = run(tmp_path / "harmed")
        assert (written, len(notes) <= len(chosen)) == (right[0], True), (chosen, notes)
        assert run(tmp_path / "harmed") == right, chosen
        shutil.rmtree(tmp_path / "harmed")
        count += len(notes)
    assert count
