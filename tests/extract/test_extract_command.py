"""`lemur extract` and `lemur show` as installed, on a small local package, in a folder whose files are named like ours."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.builders.commands import run_here, run_lemur
from tests.builders.suites import read_files, table, write_files

STRAYS = ("train", "extract", "curate", "manifests", "lemur_core", "lemur", "sandbox", "json", "torch", "pickle")

pytestmark = [pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")]

PACKAGE = read_files(__file__, "extract_command.md", "Package")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("work")
    for name in STRAYS:
        (root / f"{name}.py").write_text(f"raise SystemExit('the stray {name}.py was imported')\n")
    write_files(root / "mylib", PACKAGE)
    return root


@pytest.fixture(scope="module")
def extracted(folder: Path) -> Path:
    done = run_here("extract", "--source", "./mylib", "--out", "blocks", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "6 classes of 1 source" in done.stdout
    return folder / "blocks"


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in pq.read_table(folder / "blocks.parquet").to_pylist()}


def test_levels_and_reasons(extracted: Path) -> None:
    rows = rows_of(extracted)
    levels = {name: (row["level"], row["error_kind"]) for name, row in rows.items()}
    assert levels == {
        "Gate": ("backward", None),
        "Block": ("backward", None),
        "Exits": ("backward", None),  # what it needs holds no call that ends the process
        "Lost": ("discovered", "unresolved_import"),
        "Later": ("compiled", "crashed"),
        "Raises": ("compiled", "runtime_error"),
    }
    assert "mylib/layers/blocks.py" in rows["Lost"]["error"].replace("layers/blocks.py", "mylib/layers/blocks.py")
    assert "KeyError" in rows["Raises"]["error"]
    assert "\n" not in "".join(row["error"] or "" for row in rows.values())
    assert json.loads(rows["Gate"]["arguments"]) == {
        "init": {"args": [], "kwargs": {}},
        "forward": {"args": [], "kwargs": {"x": "torch.randn((2, 32, 20, 24))"}},
    }
    seen = json.loads(rows["Block"]["observed"])
    assert (seen["layers"], seen["parameters"], seen["gradients"]) == ({"Gate": 1}, 0, 1)
    assert rows["Later"]["arguments"] is rows["Later"]["observed"] is None


def test_files_that_are_not_python_are_named(tmp_path: Path, lemur_here: Any) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "bad.py").write_text("class A(:\n")
    (mine / "out.py").symlink_to("/dev/null")
    (mine / "old.py").write_text("print 1\n")
    command = ("extract", "--source", "./mine", "--out", "mine/blocks", "--level", "parsed", "--jobs", 1)
    left_out = "mine: 2 files are not Python, and left out: bad.py: line 1: "
    for _ in range(2):  # also where the index knows them
        nothing = lemur_here(*command, cwd=tmp_path)
        assert nothing.returncode == 1
        assert left_out in nothing.stderr
        assert nothing.stderr.splitlines()[-1].startswith("lemur: mine: no subclass of torch.nn.Module in scope")
    (mine / "good.py").write_text(
        "import torch\n\n\nclass Good(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    )
    (mine / "new.py").write_text("type New = int\n")
    newer = "mine: 1 file is for a newer Python than 3.11: new.py: needs Python 3.12 (type statement)"
    done = lemur_here(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert left_out in done.stderr
    assert left_out not in done.stdout
    again = lemur_here(*command, "--force", cwd=tmp_path)
    assert "mine: blocks is left out: lemur wrote it\n" in again.stderr
    assert again.stdout.splitlines()[0] == done.stdout.splitlines()[0] == "1 class of 1 source"
    assert (newer in done.stderr) == (sys.version_info < (3, 12))
    notes = json.loads((mine / "blocks" / "manifest.json").read_text())["details"]["notes"]
    assert notes[0] == "mine: out.py is left out: a link that leaves the folder is not followed"
    assert any(note.startswith(left_out) for note in notes)


def test_a_second_run_writes_the_same_and_its_steps_stand_in_the_glossary(folder: Path, extracted: Path) -> None:
    done = run_lemur("extract", "--source", "./mylib", "--out", "again", "--json", cwd=folder, PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    assert (folder / "again" / "blocks.parquet").read_bytes() == (extracted / "blocks.parquet").read_bytes()
    assert (folder / "again" / "required_repos.json").read_bytes() == (extracted / "required_repos.json").read_bytes()
    assert json.loads(done.stdout)["counts"]["blocks"] == 6
    steps = dict(line.split(": ", 1) for line in done.stderr.splitlines() if ": " in line)
    assert {"closed files", "levels", "runs and graphs", "minimized files", "specs"} <= steps.keys()
    glossary = Path(__file__).parents[2].joinpath("docs", "glossary.md").read_text(encoding="utf-8")
    words = {
        word
        for bold in re.findall(r"\*\*([^*]+)\*\*", glossary.lower())
        for word in (bold, f"{bold}s", f"{bold} files")
    }
    assert steps.keys() <= words | {"mylib"}


def test_show_and_verify(folder: Path, extracted: Path, lemur_here: Any) -> None:
    done = lemur_here("show", "Gate", "--in", "blocks", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "mylib::mylib.layers.gates.Gate" in done.stdout
    assert "class Gate(nn.Module):" in done.stdout
    done = lemur_here("verify", "blocks", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


@table(__file__, "extract_command.md", "Failures are one clear line", globals())
def test_failures_are_one_clear_line(
    folder: Path, extracted: Path, arguments: list[str], status: int, said: str, lemur_here: Any
) -> None:
    done = lemur_here(*arguments, cwd=folder)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "x").exists()
    if status == 1:
        assert len([line for line in done.stderr.splitlines() if line.startswith("lemur: ")]) == 1


def test_scope_needs_no_new_index(folder: Path, extracted: Path, lemur_here: Any) -> None:
    command = ["extract", "--source", "./mylib", "--symbol", "*Gate", "--level", "compiled", "--index", "skip"]
    done = lemur_here(*command, "--out", "gates", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert list(rows_of(folder / "gates")) == ["Gate"]
    assert rows_of(folder / "gates")["Gate"]["level"] == "compiled"


def test_names_that_are_only_listed_are_found_again(folder: Path, lemur_here: Any) -> None:
    done = lemur_here("extract", "--source", "./mylib", "--level", "discovered", "--out", "listed", cwd=folder)
    assert done.returncode == 0, done.stderr
    rows = rows_of(folder / "listed")
    assert {row["level"] for row in rows.values()} == {"discovered"}
    names = folder / "listed" / "nn_block_names.json"
    assert json.loads(names.read_text()) == list(rows)
    command = ["extract", "--source", "./mylib", "--names", names, "--start-from", "Block", "--limit", 2]
    done = lemur_here(*command, "--level", "emitted", "--out", "listed-again", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert list(rows_of(folder / "listed-again")) == list(rows)[list(rows).index("Block") :][:2]


NN = "import torch.nn as nn\n"
BODY = "    def forward(self, x):\n        return x\n\n\n"
PAIR = {
    "pair/a.py": f"{NN}from pair.b import B\n\n\nclass A(B, nn.Module):\n{BODY}",
    "pair/b.py": f"{NN}from pair.a import A\n\n\nclass B(A, nn.Module):\n{BODY}",
}
ONE_FILE = {"pair/a.py": f"{NN}\n\nclass A(nn.Module, B):\n{BODY}class B(A):\n{BODY}"}
OTHERS = {"LICENSE": "MIT", "pair/__init__.py": "", "pair/c.py": f"{NN}\n\nclass C(nn.Module):\n{BODY}"}


@pytest.mark.parametrize("files", [PAIR, ONE_FILE], ids=["two files", "one file"])
def test_classes_that_inherit_from_each_other(
    files: dict[str, str], tmp_path: Path, lemur_here: Callable[..., Any]
) -> None:
    write_files(tmp_path / "src", {**files, **OTHERS})
    done = lemur_here("extract", "--source", "./src", "--level", "parsed", "--jobs", 1, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in pq.read_table(tmp_path / "out" / "blocks.parquet").to_pylist()}
    assert rows["C"]["level"] == "parsed"
    mutual = [row for name, row in rows.items() if name != "C"]
    assert mutual
    for row in mutual:
        assert (row["level"], row["error_kind"]) == ("emitted", "undefined_name")
        assert row["error"].startswith("undefined in the emitted file: ")
    done = lemur_here("verify", "out", "--jobs", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
