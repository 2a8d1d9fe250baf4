"""What the tests of training share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.builders import slot_blocks


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """One thread: these networks are too small for more. Entries of jobs, called here, set another number for good."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An extraction folder of the fixture's blocks."""
    made: Path = slot_blocks.write_folder(tmp_path_factory.mktemp("made") / "blocks")
    return made
