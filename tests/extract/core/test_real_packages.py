"""A release: its blocks are closed and run where none of it can be imported."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from extract.emit.emit import Emitted
from extract.sources import open_source
from lemur_core.files.errors import RetryableError

BLOCKS = 40

RUNNER = r"""
import json, sys, torch
failed, imported = {}, []
blocks = json.load(open(sys.argv[1]))
for_operators = [name for name in blocks if "\nimport torchvision\n" in blocks[name]]  # nothing is taken from it
assert all("torch.ops.torchvision." in blocks[name] for name in for_operators)
for name in [*(name for name in blocks if name not in for_operators), *for_operators]:
    code = blocks[name]
    names = {"__name__": "block", "__file__": "block.py"}
    try:
        exec(compile(code, name, "exec"), names)
        assert issubclass(names[name.rpartition(".")[2]], torch.nn.Module)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
    if name not in for_operators:
        imported = sorted(m for m in sys.modules if m.split(".")[0] == "torchvision")
print(json.dumps([failed, imported]))
"""


@pytest.fixture(scope="module")
def outcomes(corpus: Any) -> Any:
    """Every n-th class of torchvision, extracted without torchvision in the declared runtime."""
    version = importlib.metadata.version("torchvision").partition("+")[0]
    try:
        made = corpus({}, sources=[open_source(f"torchvision@{version}")])
    except RetryableError as error:
        pytest.skip(f"needs the package index: {error}")
    emitter = made.emitter()
    chosen = made.found[:: max(1, len(made.found) // BLOCKS)][:BLOCKS]
    return len(made.found), {one.qualname: emitter.emit(one) for one in chosen}


@pytest.mark.slow
def test_torchvision(outcomes: Any, closed: Any, tmp_path: Path) -> None:
    count, found = outcomes
    assert count > 150
    assert len(found) == BLOCKS
    emitted = {}
    for name, outcome in found.items():
        if isinstance(outcome, Emitted):
            allowed = {"PIL"} if "pillow" in outcome.requires else set()
            emitted[name] = closed(outcome, frozenset(allowed))
    assert len(emitted) >= 0.9 * BLOCKS, [o.detail for o in found.values() if not isinstance(o, Emitted)]
    (tmp_path / "run.py").write_text(RUNNER)
    (tmp_path / "blocks.json").write_text(json.dumps(emitted))
    done = subprocess.run(
        [sys.executable, "-P", "-I", "run.py", "blocks.json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    failed, imported = json.loads(done.stdout)
    assert failed == {}
    assert imported == []
