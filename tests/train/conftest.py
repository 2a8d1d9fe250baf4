"""What the tests of training share."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train.fitting
from lemur_core.sandbox import Sandbox


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Entries of jobs are called in this process here and there, and set the number of threads for good."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def one_sandbox() -> Iterator[None]:
    """One real sandbox for all tests of a file: each would start its own, and import torch once more."""
    with Sandbox(entries=[train.fitting.PROBE, train.fitting.NETWORK], workers=2, limits=train.fitting.LIMITS) as box:
        kept = SimpleNamespace(__enter__=lambda: None, run=box.run, close=lambda: None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train.fitting, "Sandbox", lambda **options: kept)
            yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An extraction folder of the fixture's blocks."""
    blocks = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "train" / "slot_blocks.py"))
    made: Path = blocks["write_folder"](tmp_path_factory.mktemp("made") / "blocks")
    return made
