"""Blocks of a realistic package: they run without it, and compute the same."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from extract.emit.emit import Emitted
from tests.builders.suites import read_files

# qualified name: how to make it, and its inputs
MODULES: dict[str, tuple[str, str]] = {
    "visionkit.layers.drop.DropPath": ("DropPath(0.5)", "torch.randn(6, 3, 4)"),
    "visionkit.layers.mlp.Mlp": ("Mlp(6, 10, drop=(0.1, 0.2))", "torch.randn(2, 6)"),
    "visionkit.layers.mlp.GatedMlp": ("GatedMlp(6, use_conv=True, norm_layer=None)", "torch.randn(2, 6, 4, 4)"),
    "visionkit.layers.norm.LayerNorm2d": ("LayerNorm2d(6)", "torch.randn(2, 6, 4, 4)"),
    "visionkit.layers.squeeze.SqueezeExcite": ("SqueezeExcite(24, act='gelu')", "torch.randn(2, 24, 4, 4)"),
    "visionkit.models.attention.RelativeBias": ("RelativeBias(2, 3)", "torch.randn(1, 3, 4, 4)"),
    "visionkit.models.attention.Attention": ("Attention(8, window=2)", "torch.randn(2, 4, 8)"),
    "visionkit.models.attention.Block": ("Block(8, drop_path=0.3, window=2)", "torch.randn(2, 4, 8)"),
    "visionkit.models.convnet.ConvBlock": ("ConvBlock(8, se=False)", "torch.randn(2, 8, 6, 6)"),
    "visionkit.models.convnet.WideBlock": ("WideBlock(8)", "torch.randn(2, 8, 6, 6)"),
    "visionkit.models.convnet.TinyNet": ("TinyNet()", "torch.randn(2, 3, 16, 16)"),
    "visionkit.models.detector.AlignHead": (
        "AlignHead()",
        "torch.randn(1, 4, 8, 8), torch.tensor([[0.0, 0.0, 4.0, 4.0], [1.0, 1.0, 7.0, 6.0]])",
    ),
    "visionkit.models.detector.NmsHead": (
        "NmsHead()",
        "torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 3.9], [5.0, 5.0, 6.0, 6.0]]), torch.tensor([0.5, 0.9, 0.1])",
    ),
}
WITHOUT_ORIGINAL = {"visionkit.models.detector.NmsHead"}  # its operator is compiled

# Reads JSON {name: [code, constructor, inputs]} and writes what each block computed.
RUNNER = """
import json, sys, torch
def compute(names, make, inputs):
    torch.set_num_threads(1)  # sums in one order, whatever other tests of this process have set
    torch.manual_seed(7)
    module = eval(make, names)
    assert isinstance(module, torch.nn.Module)
    given = eval(f"({inputs},)", {"torch": torch})
    torch.manual_seed(8)
    trained = module(*given)
    module.eval()
    return {"state": module.state_dict(), "trained": trained, "evaluated": module(*given), "doc": type(module).__doc__}
if __name__ == "__main__":
    results = {}
    for name, (code, make, inputs) in json.load(open(sys.argv[1])).items():
        names = {"__name__": name}
        exec(compile(code, name, "exec"), names)
        results[name] = compute(names, make, inputs)
    assert not [name for name in sys.modules if name.startswith("visionkit")]
    torch.save(results, sys.argv[2])
"""


@pytest.fixture(scope="module")
def made(corpus: Any) -> Any:
    """The package of the page."""
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
