"""A small extraction of made-up blocks with conversations, and the parts that it is made of."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from extract.model.results import Result, code_columns
from extract.proofs.minimize import LEFT_OUT, lean_columns
from lemur_core.graphs.identity import compute_identities
from lemur_core.graphs.sizes import Sized
from tests.builders import extractions, graphs, sample_blocks

KINDS = (("Squeeze", 16, 280), ("Widen", 24, 1_000), ("Blend", 32, 0), ("Gated", 48, 70_000), ("Mixer", 64, 5_120))
LAYERS = ("Conv2d", "Linear", "BatchNorm2d", "GELU", "Dropout")


def body_of(name: str, width: int) -> str:
    """A class that shares hardly a token with those of other names."""
    lines = "\n".join(f"        self.{name.lower()}_{n} = {name}_part_{n}({width}, {n + width})" for n in range(6))
    parts = "\n\n\n".join(
        f"class {name}_part_{n}(torch.nn.Linear):\n    {name.lower()}_mark_{n} = {n}" for n in range(6)
    )
    doc = f'    """Answers {name} questions about {width} channels of some {name} kind, seen before."""\n'
    return (
        f"import torch\n\n\n{parts}\n\n\nclass {name}(torch.nn.Module):\n{doc}\n"
        f"    def __init__(self, channels, width={width}):\n        super().__init__()\n{lines}\n\n"
        f"    def forward(self, x):\n        return self.{name.lower()}_0(x.movedim(1, -1)).movedim(-1, 1) * {width} + {width + 1}\n"
    )


def read_observed(place: int, width: int, parameters: int) -> dict[str, Any]:
    """What was seen: blocks differ in size, layers, modes and, every other one, in shape."""
    half = 2 if place % 2 else 1
    cases = [
        {"inputs": {"*0": f"float32 {n}x{width}x16x16"}, "outputs": [f"float32 {n}x{width}x{16 // half}x{16 // half}"]}
        for n in (2, 3)
    ]
    layers = {LAYERS[place % 5]: 1 + place}
    if place == 4:  # more kinds than are told
        layers |= {f"Kind{one}{other}": 1 for one in "ABCDEFGHIJ" for other in "KLMNOPQRST"}
    found = {**sample_blocks.OBSERVED, "parameters": parameters, "layers": layers, "cases": cases}
    calls = {"init": [str(width)], "forward": [f"torch.randn((2, {width}, 16, 16))"]}
    worked = {name: {"args": given, "kwargs": {}} for name, given in calls.items()}
    return {
        "level": "backward",
        "error_kind": None,
        "error": None,
        "arguments": json.dumps(worked),
        "observed": json.dumps({**found, "train_differs": place % 3 == 0}),
    }


def trace_of(place: int, width: int) -> dict[str, Any]:
    """The graph of a module with the shapes of `read_observed`: a convolution and an activation of its own."""
    half = 2 if place % 2 else 1
    act = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid)[place]
    form = graphs.trace(
        lambda: nn.Sequential(nn.Conv2d(width, width, half, stride=half), act()),
        lambda: [torch.empty(2, width, 16, 16)],
    )
    facts: dict[str, Any] = {"route": "meta", "train_error": None, "reads_values": False, "initial": "", "hidden": []}
    facts |= {"draws": {}, "dead_classes": [], "unused_parameters": [], "returns": "tensor"}
    return (
        facts
        | compute_identities({"eval": form, "train": form})
        | Sized(form, form, {}, "it is traced at one size").to_json()
    )


def result_of(source: Any, name: str, place: int, width: int, parameters: int, *more: tuple[str, str]) -> Result:
    """A block that ran; `more` are the files of other sources whose definitions it holds."""
    row = extractions.block(source, name)
    code = extractions.code_of(row.block, source.license, body_of(name, width))
    code = code.replace("\n\n", "\n# Notice:  Copyright 2021 Jane Doe\n\n", 1) if name == "WidenA" else code
    lines = {"GatedA": "# Lean.\n", "MixerA": f"# Lean.\nif False:\n    raise NotImplementedError('{LEFT_OUT}: x')\n"}
    lean = lean_columns(code + lines[name], (), source.license) if name in lines else {}
    traced = trace_of(place, width)
    facts = read_observed(place, width, parameters) | lean | {key: traced[key] for key in ("graph", "graph_widths")}
    row = row.model_copy(update={**code_columns(code), **facts, "lean_error": None if lean else "not made here"})
    return Result(row, ((source.name, row.path), *more), traced)


def results_of(source: Any) -> Iterator[Result]:
    for place, (name, width, parameters) in enumerate(KINDS):
        # what two sources have in common are copies of one block
        more = place and len(source.name) * ord(source.name[0])
        own = f"{name}{source.name[0].upper()}" if place else name
        yield result_of(source, own, place, width + more, parameters + (width + more if place else 0))


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Any]:
    """Of three licenses: alpha is MIT, beta GPL, gamma says nothing."""
    folder = tmp_path_factory.mktemp("sources")
    return [extractions.source(folder, name) for name in ("alpha@1.0", "beta@2.0", "gamma@3.0")]


@pytest.fixture(scope="session")
def results(sources: Sequence[Any]) -> list[Result]:
    """Five blocks of each source that ran, one of alpha that holds code of beta, one that was not constructed."""
    found = [result for source in sources for result in results_of(source)]
    alpha = sources[0]
    found.insert(5, result_of(alpha, "WidenToo", 1, 99, 77, ("beta@2.0", "beta/blocks.py")))
    plain = extractions.block(alpha, "Plain", "executed", error_kind="no_arguments", error="none found")
    found.insert(6, Result(plain, ((alpha.name, plain.path),)))
    return found


@pytest.fixture(scope="session")
def write(sources: Sequence[Any], results: list[Result]) -> Callable[..., Path]:
    def write_to(out: Path, **facts: Any) -> Path:
        extractions.write(out, results, sources, level="backward", **facts)
        return out

    return write_to


@pytest.fixture(scope="session")
def extraction(write: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("chat") / "out", chat=True)
