"""What the tests of training share."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import train.compose.candidates
from lemur_core.sandbox import Sandbox, cached
from tests.builders import slot_blocks


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """One thread: these networks are too small for more. Entries of jobs, called here, set another number for good."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def one_sandbox() -> Iterator[None]:
    """One real sandbox for all tests of a file: each would start its own, and import torch once more."""
    entries = [train.compose.candidates.PROBE.guest, train.compose.candidates.NETWORK.guest]
    sandbox = Sandbox(entries=entries, workers=2, limits=train.compose.candidates.LIMITS)
    with sandbox as box, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached, "Sandbox", lambda **options: contextlib.nullcontext(box))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An extraction folder of the fixture's blocks."""
    made: Path = slot_blocks.write_folder(tmp_path_factory.mktemp("made") / "blocks")
    return made
