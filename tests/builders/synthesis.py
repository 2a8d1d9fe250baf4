"""A small extraction whose blocks a model is asked for, and networks that use them."""

import json
from pathlib import Path
from typing import Any

from extract.model.results import Result, code_columns
from tests.builders import extractions, visits
from tests.builders.suites import read_files

TEXTS = read_files(__file__, "synthesis.md")

SOURCES = {"SqueezeGate": TEXTS["GATE"], "ResidualPair": TEXTS["PAIR"]}
HEAD = "import torch\nfrom torch import nn\n\n\n"

OWN = {"SqueezeGate": TEXTS["OWN_GATE"], "ResidualPair": TEXTS["OWN_PAIR"]}

ARGUMENTS = {"init": {"args": [], "kwargs": {}}, "forward": {"args": ["torch.randn(2, 16, 16, 16)"], "kwargs": {}}}


def network(
    name: str = "", *, block: str = "", make: str = "", use: str = "", width: int | str = 16, head: str = HEAD
) -> str:
    """A network with a class of this name. Args: block: its text; make, use: lines of Net; head: what is imported."""
    make = make or (f"self.block = {name}({width})" if name else "pass")
    use = use or ("x = self.block(x)" if name else "pass")
    net = TEXTS["_NETWORK"].replace("WIDTH", str(width)).replace("MAKE", make).replace("USE", use)
    return f"{head}{block or OWN.get(name, '')}\n\n{net}"


#: Layers, and how they are called.
_LAYERS = {
    "nn.Conv2d(16, 16, 3, padding=1)": "x = torch.relu({})",
    "nn.Sequential(*[nn.Identity()] * 2)": "x = x + 0 * {}.sum()",
    "nn.Identity()": "x = {}[:, :, ::2].tanh()",
}


def varied_network(choice: int) -> str:
    """A network of seven layers that depend on the choice: their texts are not near. Args: choice: up to 3**7."""
    picked = [list(_LAYERS.items())[choice // 3**place % 3] for place in range(7)]
    layers = [f"self.layer{place} = {layer}" for place, (layer, _) in enumerate(picked)]
    calls = [call.format(f"self.layer{place}(x)") for place, (_, call) in enumerate(picked)]
    return network(make="\n        ".join(layers), use="\n        ".join(calls))


def traced(folder: Path, codes: dict[str, tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """What classes compute, by a name of one's own: the name of the class and its code."""
    return visits.trace(folder, {key: (name, code, ARGUMENTS) for key, (name, code) in codes.items()})


def write(folder: Path, answers: dict[str, dict[str, Any]], *, chat: bool = False, **facts: Any) -> Path:
    """The extraction folder of the two blocks, from what they compute. Args: facts: columns of their rows."""
    of = extractions.source(folder, "alpha@1.0")
    results = []
    for name, code in SOURCES.items():
        answer = answers[name]
        closed = code_columns(extractions.code_of(f"{of.name}::alpha.blocks.{name}", of.license, HEAD + code))
        shape = "float32 2x16x16x16"
        observed = {"trainable": 1, "buffers": 0, "cases": [{"inputs": {"x": shape}, "outputs": [shape]}]}
        observed |= {"parameters": 148 if name == "SqueezeGate" else 4672, "layers": {"Conv2d": 2}}
        told = {"observed": json.dumps(observed), "arguments": json.dumps(ARGUMENTS), "error_kind": None, "error": None}
        graphs = {column: answer[column] for column in ("graph", "graph_widths")}
        row = extractions.block(of, name, "backward", **{**told, **graphs, **closed, **facts})
        results.append(Result(row, ((of.name, row.path),), answer))
    extractions.write(folder / "blocks", results, [of], level="backward", chat=chat)
    return folder / "blocks"
