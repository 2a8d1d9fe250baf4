"""A small extraction of made-up blocks with conversations, and the parts that it is made of."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from extract.model.results import Result, code_columns
from extract.proofs.minimize import lean_columns
from lemur_core.graphs.identity import compute_identities
from lemur_core.graphs.serialization import store
from lemur_core.graphs.sizes import Sized
from manifests.records import Block
from tests.builders import extractions, graphs, sample_blocks

KINDS = (("Squeeze", 16, 280), ("Widen", 24, 1_000), ("Blend", 32, 0), ("Gated", 48, 70_000), ("Mixer", 64, 5_120))
TRACED: dict[str, dict[str, Any]] = {}  # by block
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
    worked = {"init": {"args": [str(width)], "kwargs": {}}, "forward": {"args": [f"torch.randn((2, {width}, 16, 16))"]}}
    worked["forward"]["kwargs"] = {}  # type: ignore[index]
    return {
        "level": "backward",
        "error_kind": None,
        "error": None,
        "arguments": json.dumps(worked),
        "observed": json.dumps({**found, "train_differs": place % 3 == 0}),
        "lean_error": "not made here",
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
        | store(Sized(form, form, {}, "it is traced at one size"))
    )


def result_of(row: Block, files: tuple[tuple[str, str], ...] | None = None) -> Result:
    return Result(row, files or ((row.source, row.path),), TRACED[row.block])


def rows_of(source: Any, count: int = 5) -> list[Block]:
    rows = []
    for place, (name, width, parameters) in enumerate(KINDS[:count]):
        # what two sources have in common are copies of one block
        name = name if place == 0 else f"{name}{source.name[0].upper()}"
        width += 0 if place == 0 else len(source.name) * ord(source.name[0])
        block = extractions.block(source, name)
        code = extractions.code_of(block.block, source.license, body_of(name, width))
        observed = read_observed(place, width, parameters + (width if place else 0))
        if name == "GatedA":
            observed |= {
                **lean_columns(f"{code}# Lean.\n", (), source.license),
                "lean_error": None,
            }
        TRACED[block.block] = trace_of(place, width)
        observed |= {key: TRACED[block.block][key] for key in ("graph", "graph_widths")}
        rows.append(block.model_copy(update={**code_columns(code), **observed}))
    return rows


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Any]:
    """Of three licenses: alpha is MIT, beta GPL, gamma says nothing."""
    folder = tmp_path_factory.mktemp("sources")
    return [extractions.source(folder, name) for name in ("alpha@1.0", "beta@2.0", "gamma@3.0")]


@pytest.fixture(scope="session")
def results(sources: Sequence[Any]) -> list[Result]:
    """Five blocks of each source that ran, one of alpha that holds code of beta, one that was not constructed."""
    found = [result_of(row) for source in sources for row in rows_of(source)]
    alpha = sources[0]
    mixed = rows_of(alpha)[1]
    code = extractions.code_of(f"{mixed.block}Too", alpha.license, body_of("WidenToo", 99))
    mixed = mixed.model_copy(
        update={
            "block": f"{alpha.name}::alpha.blocks.WidenToo",
            "name": "WidenToo",
            "qualname": "alpha.blocks.WidenToo",
            **code_columns(code.replace(f"{mixed.block}Too", f"{alpha.name}::alpha.blocks.WidenToo")),
            **read_observed(1, 99, 77),
        }
    )
    TRACED[mixed.block] = trace_of(1, 99)
    mixed = mixed.model_copy(update={key: TRACED[mixed.block][key] for key in ("graph", "graph_widths")})
    found.insert(5, result_of(mixed, ((alpha.name, mixed.path), ("beta@2.0", "beta/blocks.py"))))
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
