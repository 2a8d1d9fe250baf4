"""Commands that are killed at six points, and run again: the same bytes, and nothing left behind."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.builders import synthesis
from tests.builders.kills import assert_it_survives

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is of Linux")]

#: These state seconds and dates.
TIMES = ("manifest.json", "report.md", "index.html", "files.json", "history.jsonl", "record.json")
LICENSE = Path(__file__).parents[2] / "LICENSE"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def write_package(place: Path) -> None:
    (place / "alpha").mkdir()
    shutil.copy(LICENSE, place / "alpha" / "LICENSE")
    (place / "alpha" / "blocks.py").write_text(f'"""Blocks."""\n{synthesis.HEAD}{synthesis.TEXTS["GATE"]}')


def test_extract(place: Path) -> None:
    write_package(place)
    command = ["extract", "--source", "./alpha", "--out", "blocks", "--force"]
    assert_it_survives([command], place, "blocks", volatile=TIMES)


def test_train_run(place: Path) -> None:
    options = ["--data", "synthetic", "--epochs", 2, "--images", 64, "--held-out", 32, "--device", "cpu"]
    assert_it_survives([["train", "run", "plain", *options, "--out", "run", "--force"]], place, "run", volatile=TIMES)
