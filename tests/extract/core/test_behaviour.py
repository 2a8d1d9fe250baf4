"""Blocks of a realistic package: they run without it, and compute the same."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from extract.emit.emit import Emitted
from tests.builders.suites import read_files, read_table

# qualified name: how to make it, and its inputs
MODULES: dict[str, tuple[str, str]] = read_table(__file__, "behaviour.md", "Modules", globals())
WITHOUT_ORIGINAL = {"visionkit.models.detector.NmsHead"}  # its operator is compiled

# Reads JSON {name: [code, constructor, inputs]} and writes what each block computed.
TEXTS = read_files(__file__, "behaviour.md")
RUNNER = TEXTS["RUNNER"]


@pytest.fixture(scope="module")
def made(corpus: Any) -> Any:
    return corpus(read_files(__file__, "visionkit.md"))


@pytest.fixture(scope="module")
def blocks(made: Any) -> dict[str, Emitted]:
    found = made.blocks()
    assert set(found) == set(MODULES)
    return found  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def results(blocks: dict[str, Emitted], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the outputs of all blocks in one fresh interpreter."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "run.py").write_text(RUNNER)
    jobs = {name: (outcome.code, *MODULES[name]) for name, outcome in blocks.items()}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, "-P", "-I", "run.py", "jobs.json", "results.pt"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "results.pt", weights_only=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", MODULES)
def test_block_is_closed(blocks: dict[str, Emitted], closed: Any, name: str) -> None:
    closed(blocks[name])


@pytest.mark.parametrize("name", [name for name in MODULES if name not in WITHOUT_ORIGINAL])
def test_block_computes_what_the_original_computes(
    results: dict[str, Any], made: Any, original: Any, name: str
) -> None:
    runner: dict[str, Any] = {"__name__": "runner"}
    exec(RUNNER, runner)
    with original(made, name.rpartition(".")[0]) as names:
        expected = runner["compute"](dict(names), *MODULES[name])
    found = results[name]
    assert found["doc"] == expected["doc"]
    assert list(found["state"]) == list(expected["state"])
    for key, value in expected["state"].items():
        assert torch.equal(found["state"][key], value), key
    assert torch.equal(found["trained"], expected["trained"])
    assert torch.equal(found["evaluated"], expected["evaluated"])


def test_a_compiled_operator_has_a_stand_in(results: dict[str, Any]) -> None:
    kept = results["visionkit.models.detector.NmsHead"]["evaluated"]
    assert torch.allclose(kept, torch.tensor([[0.0, 0.0, 4.0, 3.9], [5.0, 5.0, 6.0, 6.0]]))


def test_registered_classes_are_brought_along(blocks: dict[str, Emitted]) -> None:
    code = blocks["visionkit.models.convnet.TinyNet"].code
    for part in ("class ConvBlock(", "class WideBlock(", "nn.GroupNorm", "nn.BatchNorm2d", "class LayerNorm2d("):
        assert part in code
