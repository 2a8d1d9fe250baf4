"""What the tests of synthesis share: blocks that were traced once, and a library of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.builders import synthesis

_WIDER = synthesis.TEXTS["OWN_GATE"].replace("ratio=4", "ratio=2")
_FLAT = synthesis.TEXTS["OWN_GATE"].replace("* x", "* x.mean((2, 3), keepdim=True)")
_PLAIN = synthesis.TEXTS["OWN_GATE"].replace("* x", "+ x")
VARIANTS = {"own": synthesis.TEXTS["OWN_GATE"], "wider": _WIDER, "flat": _FLAT, "plain": _PLAIN}


@pytest.fixture(scope="session")
def answers(curator_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the blocks of the library and some variants of one of them compute, traced in the sandbox."""
    codes = {name: (name, synthesis.HEAD + code) for name, code in synthesis.SOURCES.items()}
    codes |= {name: ("SqueezeGate", synthesis.HEAD + code) for name, code in VARIANTS.items()}
    found: dict[str, Any] = synthesis.traced(tmp_path_factory.mktemp("traced"), codes)
    return found


@pytest.fixture(scope="session")
def library(answers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An extraction of two blocks under the MIT license."""
    folder: Path = synthesis.write(tmp_path_factory.mktemp("library"), answers)
    return folder
