"""A small extraction whose blocks a model is asked for, and networks that use them."""

import json
from pathlib import Path
from typing import Any

from extract.model.results import Result, code_columns
from extract.proofs.trace import trace_all
from extract.proofs.validate import Pair
from extract.resolve.index import Index
from tests.builders import extractions

GATE = '''class SqueezeGate(nn.Module):
    """Scales channels by a gate that is computed from their means over the whole image."""

    def __init__(self, channels=16, reduction=4):
        super().__init__()
        hidden_channels_of_the_gate = max(channels // reduction, 1)
        self.reduce_channels = nn.Conv2d(channels, hidden_channels_of_the_gate, kernel_size=1)
        self.expand_channels = nn.Conv2d(hidden_channels_of_the_gate, channels, kernel_size=1)

    def forward(self, x):
        pooled_over_the_image = x.mean(dim=(2, 3), keepdim=True)
        gate_values = torch.sigmoid(self.expand_channels(torch.relu(self.reduce_channels(pooled_over_the_image))))
        return x * gate_values
'''
PAIR = '''class ResidualPair(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, channels=16):
        super().__init__()
        self.first_convolution = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.first_normalisation = nn.BatchNorm2d(channels)
        self.second_convolution = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.second_normalisation = nn.BatchNorm2d(channels)

    def forward(self, x):
        inner_activations = torch.relu(self.first_normalisation(self.first_convolution(x)))
        return torch.relu(x + self.second_normalisation(self.second_convolution(inner_activations)))
'''
SOURCES = {"SqueezeGate": GATE, "ResidualPair": PAIR}
HEAD = "import torch\nfrom torch import nn\n\n\n"

#: The same computation in other words.
OWN_GATE = """class SqueezeGate(nn.Module):
    def __init__(self, width=16, ratio=4):
        super().__init__()
        small = max(1, width // ratio)
        layers = [nn.Conv2d(width, small, 1), nn.ReLU(), nn.Conv2d(small, width, 1), nn.Sigmoid()]
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return self.body(x.mean((2, 3), keepdim=True)) * x
"""
OWN_PAIR = """class ResidualPair(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        def half():
            return nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.a, self.b = half(), half()

    def forward(self, x):
        y = self.b(self.a(x).relu())
        return (y + x).relu()
"""
OWN = {"SqueezeGate": OWN_GATE, "ResidualPair": OWN_PAIR}

ARGUMENTS = {"init": {"args": [], "kwargs": {}}, "forward": {"args": ["torch.randn(2, 16, 16, 16)"], "kwargs": {}}}

_NETWORK = """def supported_hyperparameters():
    return {"lr", "momentum"}


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.device = device
        self.stem = nn.Conv2d(in_shape[1], WIDTH, 3, stride=2, padding=1)
        MAKE
        self.head = nn.Linear(WIDTH, out_shape[0])

    def forward(self, x):
        x = self.stem(x).relu()
        USE
        return self.head(x.mean((2, 3)))

    def train_setup(self, prm):
        self.to(self.device)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=prm["lr"], momentum=prm["momentum"])

    def learn(self, train_data):
        self.train()
        for inputs, labels in train_data:
            self.optimizer.zero_grad()
            loss = self.criterion(self(inputs.to(self.device)), labels.to(self.device))
            loss.backward()
            self.optimizer.step()
"""


def network(
    name: str = "", *, block: str = "", make: str = "", use: str = "", width: int = 16, head: str = HEAD
) -> str:
    """A network with a class of this name. Args: block: its text; make, use: lines of Net; head: what is imported."""
    make = make or (f"self.block = {name}({width})" if name else "pass")
    use = use or ("x = self.block(x)" if name else "pass")
    net = _NETWORK.replace("WIDTH", str(width)).replace("MAKE", make).replace("USE", use)
    return f"{head}{block or OWN.get(name, '')}\n\n{net}"


def traced(folder: Path, codes: dict[str, tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """What classes compute, by a name of one's own: the name of the class and its code."""
    pairs = [Pair(key, name, code, "", (), (), ARGUMENTS) for key, (name, code) in codes.items()]
    with Index(folder / "facts.sqlite") as index:
        return {one.block: dict(one.answer or {}) for one in trace_all(pairs, index, jobs=1)}


def write(folder: Path, answers: dict[str, dict[str, Any]], **facts: Any) -> Path:
    """The extraction folder of the two blocks, from what they compute."""
    of = extractions.source(folder, "alpha@1.0")
    results = []
    for name, code in SOURCES.items():
        answer = answers[name]
        closed = code_columns(extractions.code_of(f"{of.name}::alpha.blocks.{name}", of.license, HEAD + code))
        shape = "2x16x16x16"
        observed = {
            "parameters": 148 if name == "SqueezeGate" else 4672,
            "trainable": 1,
            "buffers": 0,
            "layers": {"Conv2d": 2},
            "cases": [{"inputs": {"x": f"float32 {shape}"}, "outputs": [f"float32 {shape}"]}],
        }
        row = extractions.block(
            of,
            name,
            "backward",
            error_kind=None,
            error=None,
            observed=json.dumps(observed),
            arguments=json.dumps(ARGUMENTS),
            graph=answer["graph"],
            graph_widths=answer["graph_widths"],
            **{**closed, **facts},
        )
        results.append(Result(row, ((of.name, row.path),), answer))
    extractions.write(folder / "blocks", results, [of], level="backward")
    return folder / "blocks"
