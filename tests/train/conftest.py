"""What the tests of training share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Entries of jobs are called in this process here and there, and set the number of threads for good."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
