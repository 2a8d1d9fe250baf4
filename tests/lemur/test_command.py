"""The installed command, in a folder whose files are named like our packages."""

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from datasets import load_dataset

from curate.model.options import SPLIT_RATIOS
from lemur_core.files.atomic import sha256_file
from lemur_core.files.cache import find_marker
from manifests.folders.manifest import read_manifest
from manifests.records import LemurRecord
from tests.builders.commands import LEMUR, environment, run_here
from tests.builders.commands import run_lemur as lemur

OURS = ("train", "extract", "curate", "manifests", "lemur_core", "lemur")
STRAYS = (*OURS, "sandbox", "json", "pyarrow", "pickle", "multiprocessing")

pytestmark = [pytest.mark.skipif(os.name != "posix", reason="signals and paths of POSIX")]


def network(dice: random.Random, size: int = 14) -> str:
    layers = ("Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d", "Linear", "Dropout", "GELU", "LSTM", "GroupNorm", "Flatten")
    head = "import torch.nn as nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    body = [
        f"        self.n{dice.randrange(1000)}X = nn.{dice.choice(layers)}({dice.randrange(512)})" for _ in range(size)
    ]
    return head + "\n".join(body) + "\n\n    def forward(self, x):\n        return self.a(x)\n"


def some_rows() -> list[dict[str, Any]]:
    """Every kind of row: several a network, copies, near-duplicates, without accuracy, unusable."""
    dice = random.Random(1)
    rows: list[dict[str, Any]] = []
    for number in range(30):
        code = network(dice)
        prefix = ("ga", "alt", "rag", "FractalNet")[number % 4]
        for epoch in (1, 5):
            accuracy = round(dice.random(), 3) if number % 7 else None
            rows.append({"nn": f"{prefix}-{number}", "nn_code": code, "task": "img", "dataset": "cifar-10", "metric": "acc",
                         "epoch": epoch, "accuracy": accuracy, "duration": 1.5, "prm": {"lr": 0.1}})  # fmt: skip
        if number % 3 == 0:
            rows.append({"nn": f"ast-{number}", "nn_code": code.replace("self.a", "self.b"), "accuracy": 0.1})
            rows.append({"nn": f"c-{number}", "nn_code": "# the same\n" + code})
    rows += [
        {"nn": "ga-0b", "nn_code": rows[0]["nn_code"]},
        {"nn": "broken", "nn_code": "def ("},
        {"nn": "blank", "nn_code": " "},
    ]
    return [*rows, {"nn": "none", "nn_code": None}, {"nn": "ü–\U0001f600", "nn_code": "class Net(Module): x = 'ü'\n"}]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def scatter(folder: Path) -> Path:
    """Put files in the way of every import that trusts the working folder."""
    folder.mkdir(exist_ok=True)
    for name in STRAYS:
        (folder / f"{name}.py").write_text(f"raise SystemExit('the stray {name}.py was imported')\n")
    return folder


Done = subprocess.CompletedProcess[str]


def assert_one_line(done: Done, status: int, *parts: str) -> None:
    """Failed as promised: the status, one line on stderr that says what, where and what to do, nothing on stdout."""
    lines = [
        line
        for line in done.stderr.splitlines()
        if not line.startswith(("token sets and fingerprints:", "graphs:", "reading "))
    ]
    assert done.returncode == status, done.stderr
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("lemur: ")
    for part in parts:
        assert part in lines[0]
    assert done.stdout == ""


def leftovers(folder: Path) -> list[str]:
    """What lies in a folder besides the strays and our inputs."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix not in (".py", ".jsonl", ".csv") and path.name != "__pycache__"
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    place = scatter(tmp_path_factory.mktemp("made"))
    write_rows(place / "rows.jsonl", some_rows())
    done = run_here("curate", "rows.jsonl", "--out", "out", "--jobs", 2, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "out", done


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = scatter(tmp_path / "place")
    write_rows(folder / "rows.jsonl", some_rows())
    return folder


@pytest.fixture
def snapshot(made: tuple[Path, Done], place: Path) -> Path:
    """A copy of the snapshot, to be harmed."""
    return Path(shutil.copytree(made[0], place / "out"))


def test_version_and_help(place: Path, lemur_here: Any) -> None:
    version = lemur("--version", cwd=place)
    assert re.fullmatch(r"lemur-curator \d+\.\d+\.\d+\S*\n", version.stdout), version
    for command in ((), ("curate",), ("verify",), ("train", "run")):
        short, long = lemur_here(*command, "-h", cwd=place), lemur_here(*command, "--help", cwd=place)
        assert short.returncode == long.returncode == 0
        assert short.stdout == long.stdout
    assert leftovers(place) == []


@pytest.mark.parametrize("arguments", [["--help"], ["curate", "--no-such-flag"]])
def test_help_and_wrong_usage_import_nothing_heavy(place: Path, arguments: list[str]) -> None:
    """That is why both come within a second."""
    script = (
        "import sys; sys.argv[0] = 'lemur'; import lemur\ntry: lemur.main()\nexcept SystemExit: pass\n"
        "print('loaded', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    command = [sys.executable, "-P", "-c", script, *arguments]
    done = subprocess.run(command, cwd=place, env=environment(), capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded"
    heavy = {"torch", "datasets", "matplotlib", "numpy", "scipy", "pyarrow", "mlcroissant", "libcst", "huggingface_hub"}
    assert heavy & set(loaded) == set()


def test_end_to_end(made: tuple[Path, Done]) -> None:
    out, done = made
    assert leftovers(out.parent) == ["out"]
    assert "stray" not in done.stderr
    summary = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    manifest = read_manifest(out)
    assert summary["counts"] == manifest.counts
    assert summary["out"] == "out"
    rows = manifest.counts["rows"]
    assert rows["input"] == len(some_rows()) == sum(count for name, count in rows.items() if name != "input")
    assert (rows["invalid"], rows["exact"] >= 4, rows["lexical"] >= 10, rows["kept"] >= 25) == (3, True, True, True)
    assert [(item.name, item.sha256) for item in manifest.inputs] == [
        ("rows.jsonl", sha256_file(out.parent / "rows.jsonl"))
    ]
    assert manifest.parameters["source"] == "rows.jsonl"
    listed = {item.path for item in manifest.outputs}
    assert {"README.md", "report.md", "decisions.parquet", "networks.parquet"} <= listed
    for split in SPLIT_RATIOS:
        assert f"data/records/{split}-00000-of-00001.parquet" in listed
    for path in out.rglob("*"):
        if path.suffix in (".md", ".json"):
            assert str(out.parent) not in path.read_text(encoding="utf-8"), "a path of this machine in the output"


@pytest.mark.slow
def test_load_dataset(made: tuple[Path, Done], tmp_path: Path) -> None:
    names = (None, "stats", "decisions", "networks")
    records, stats, decisions, networks = (load_dataset(str(made[0]), name, cache_dir=str(tmp_path)) for name in names)
    counts = read_manifest(made[0]).counts
    assert {split: len(part) for split, part in records.items()} == counts["splits"]
    assert min(counts["splits"].values()) > 0
    assert all(part.column_names == list(LemurRecord.model_fields) for part in records.values())
    assert len(decisions["full"]) == counts["rows"]["input"]
    assert len(stats["train"]) == counts["rows"]["input"] - counts["rows"]["invalid"]
    assert len(networks["full"]) == counts["codes"]
    assert "ü–\U0001f600" in {name for part in records.values() for name in part["nn"]}


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }


def test_same_bytes(made: tuple[Path, Done], place: Path) -> None:
    """Neither the number of workers, nor the hash seed, the cache, the clock or the folder shows in the output."""
    cache = str(place.parent / "cold")
    done = lemur(
        "curate", "rows.jsonl", "--out", "other", "--jobs", 1, cwd=place, PYTHONHASHSEED="1",
        LEMUR_CURATOR_CACHE=cache, TZ="Asia/Tokyo", LC_ALL="C",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert files(place / "other") == files(made[0])
    one, two = (read_manifest(folder).model_dump(exclude={"measured"}) for folder in (made[0], place / "other"))
    assert one == two


def test_verify_passes(made: tuple[Path, Done], place: Path, lemur_here: Any) -> None:
    done = lemur_here("verify", made[0], cwd=place)
    assert done.returncode == 0, done.stdout
    assert all(line.startswith("ok  ") for line in done.stdout.splitlines())
    told = {line.removeprefix("ok  ").partition(":")[0].strip() for line in done.stdout.splitlines()}
    assert {"digests", "schema LemurRecord", "derived", "rows", "licenses"} <= told
    assert {"near duplicates", "witnesses", "leaks", "graphs", "page"} <= told
    done = lemur_here("verify", made[0], "--json", cwd=place)
    assert all(check["ok"] for check in json.loads(done.stdout))


def test_rows_of_which_none_can_be_used(place: Path, lemur_here: Any) -> None:
    """A snapshot without records is of no use to anybody: the first reason is told, and nothing is written."""
    write_rows(place / "in.jsonl", [{"nn": "a", "nn_code": "def ("}, {"nn": "b", "nn_code": None}])
    done = lemur_here("curate", "in.jsonl", "--out", "out", "--jobs", 1, cwd=place)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("lemur: none of 2 rows holds usable code: not Python")
    assert not (place / "out").exists()


def test_names_of_others_do_not_reach_the_terminal_as_they_are(place: Path, lemur_here: Any) -> None:
    name = "no\x1b]0;title\x07\x1b[31m\nsuch"
    for command in (
        ["curate", name, "--out", "x"],
        ["verify", name],
        ["show", "a", "--in", name],
        ["search", "x", "--in", name],
    ):
        done = lemur_here(*command, cwd=place)
        assert_one_line(done, 1, "no\\x1b]0;title\\x07\\x1b[31m\\nsuch")
        assert "\x1b" not in done.stderr


def test_names_that_are_not_utf8_are_refused_before_any_work(place: Path, lemur_here: Any) -> None:
    name = os.fsdecode(b"caf\xe9")
    (place / "link").symlink_to(name)
    (place / name).mkdir()
    (place / name / "a.py").write_text("import torch\n")
    refused = "its name is not UTF-8, so results cannot hold it; rename it"
    for command in (
        ["curate", f"{name}.jsonl", "--out", "x"],
        ["curate", "rows.jsonl", "--out", name],
        ["curate", "./link", "--out", "x"],
        ["extract", "--source", "./link", "--out", "x"],
        ["verify", name],
        ["demo", "--out", name],
    ):
        assert_one_line(lemur_here(*command, cwd=place), 1, "caf\\udce9", refused)
    assert_one_line(lemur_here("verify", ".", cwd=place / name), 1, "caf\\udce9", refused)
    assert not (place / "x").exists()


def test_output_in_the_way(snapshot: Path, place: Path, lemur_here: Any) -> None:
    before = files(snapshot)
    assert_one_line(lemur_here("curate", "rows.jsonl", "--out", "out", cwd=place), 1, "out: exists already", "--force")
    # a run that fails leaves the older folder as it was, one that succeeds replaces it whole
    done = lemur_here("curate", "missing.csv", "--out", "out", "--force", cwd=place)
    assert_one_line(done, 1, "missing.csv")
    assert files(snapshot) == before
    done = lemur_here("curate", "rows.jsonl", "--out", "out", "--force", "--include", "rag", "--jobs", 1, cwd=place)
    assert done.returncode == 0, done.stderr
    assert read_manifest(snapshot).parameters["include"] == ["rag"]
    assert leftovers(place) == ["out"]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def many_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dice = random.Random(2)
    rows = [{"nn": f"n-{i}", "nn_code": network(dice, 1000)} for i in range(500)]
    return write_rows(tmp_path_factory.mktemp("many") / "big.jsonl", rows)


@pytest.fixture
def curating(place: Path, many_rows: Path) -> Iterator[subprocess.Popen[str]]:
    """A command in the middle of its work, with two workers, in a process group of its own; `stderr` goes to a file."""
    (place / "big.jsonl").hardlink_to(many_rows)
    log = place.parent / "stderr"
    with log.open("w") as stderr:
        run = subprocess.Popen(
            [str(LEMUR), "curate", "big.jsonl", "--out", "out", "--jobs", "2"],
            cwd=place, env=environment(LEMUR_CURATOR_CACHE=str(place.parent / "cold")), stdout=subprocess.PIPE,
            stderr=stderr, text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # ignored, where nohup runs the tests
        )  # fmt: skip
    wait_for(lambda: "token sets and fingerprints: " in log.read_text() or run.poll() is not None)
    assert run.poll() is None, log.read_text()
    assert any(path.suffix == ".part" for path in place.iterdir()), "not in the middle of the work"
    yield run
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.communicate()


def assert_end(processes: list[psutil.Process]) -> None:
    wait_for(lambda: not any(each.is_running() and each.status() != "zombie" for each in processes), 10)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_interrupted(place: Path, curating: subprocess.Popen[str], number: signal.Signals, status: int) -> None:
    """Ctrl-C and a closed terminal reach the whole process group, a request to end the main process alone."""
    children = psutil.Process(curating.pid).children(recursive=True)
    assert len(children) >= 2
    if number is signal.SIGTERM:
        os.kill(curating.pid, number)
    else:
        os.killpg(curating.pid, number)
    if number is signal.SIGHUP:  # the shell sends it, and then the kernel
        time.sleep(0.02)
        os.killpg(curating.pid, number)
    stdout, _ = curating.communicate(timeout=30)
    lines = [
        line
        for line in (place.parent / "stderr").read_text().splitlines()
        if not line.startswith("token sets and fingerprints:")
    ]
    assert curating.returncode == status
    assert lines == ["lemur: interrupted; its output, if any, is whole or absent: run again, what is cached is used"]
    assert stdout == ""
    assert leftovers(place) == []
    assert_end(children)
    cache = place.parent / "cold"
    assert list(cache.rglob("*.arrow")), "the next run starts from nothing"
    assert not list(cache.rglob("*.part"))


@pytest.mark.slow
def test_workers_end_with_a_command_that_is_killed(curating: subprocess.Popen[str]) -> None:
    children = psutil.Process(curating.pid).children(recursive=True)
    assert len(children) >= 2
    curating.kill()
    assert_end(children)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 192 KiB, where this user may mount one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("needs root on Linux, to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("full", ["output", "cache"])
def test_no_space(place: Path, small_disk: Path, full: str) -> None:
    dice = random.Random(3)
    write_rows(place / "big.jsonl", [{"nn": f"n-{i}", "nn_code": network(dice, 60)} for i in range(150)])
    out, cache = (small_disk / "out", None) if full == "output" else ("out", small_disk / "cache")
    changes = {"LEMUR_CURATOR_CACHE": str(cache)} if cache else {}
    done = lemur("curate", "big.jsonl", "--out", out, "--jobs", 2, cwd=place, **changes)
    assert_one_line(done, 1, "No space left on device")
    assert ("free space" in done.stderr) or cache
    assert leftovers(place) == []
    written = [
        path
        for path in small_disk.rglob("*")
        if path.is_file() and path != find_marker(small_disk / "cache" / "features")
    ]
    assert [path.name for path in written] == []
