"""What the tests of synthesis share: blocks that were traced once, and a library of them."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

small = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "library.py")))

_WIDER = small.OWN_GATE.replace("ratio=4", "ratio=2")
_FLAT = small.OWN_GATE.replace("* x", "* x.mean((2, 3), keepdim=True)")
_PLAIN = small.OWN_GATE.replace("* x", "+ x")
VARIANTS = {"own": small.OWN_GATE, "wider": _WIDER, "flat": _FLAT, "plain": _PLAIN}


@pytest.fixture(scope="session")
def answers(curator_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the blocks of the library and some variants of one of them compute, traced in the sandbox."""
    codes = {name: (name, small.HEAD + code) for name, code in small.SOURCES.items()}
    codes |= {name: ("SqueezeGate", small.HEAD + code) for name, code in VARIANTS.items()}
    found: dict[str, Any] = small.traced(tmp_path_factory.mktemp("traced"), codes)
    return found


@pytest.fixture(scope="session")
def library(answers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An extraction of two blocks under the MIT licence."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("extract.folder.report.draw_figures", lambda *given: {})
        folder: Path = small.write(tmp_path_factory.mktemp("library"), answers)
    return folder
