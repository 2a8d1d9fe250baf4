"""Files of networks, as people and models write them: which compute the same, which do not, which but for widths.

After the cases that nn-dataset's `arch_uid` is tested with, and those that a view of the text alone cannot see. Each is
traced in eval and in train mode as curation traces it, all of them in one process of their own.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from textwrap import dedent, indent

import pytest

pytestmark = pytest.mark.slow

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
"""
GLUE = """
    def train_setup(self, prm):
        self.optimizer = torch.optim.SGD(self.parameters(), lr=prm["lr"])

    def learn(self, train_data):
        for inputs, labels in train_data:
            self.optimizer.zero_grad()
"""
CASE = {
    "in_shape": [2, 3, 16, 16],
    "out_shape": [5],
    "dtype": "float32",
    "values": [0.0, 1.0],
    "output": [2, 5],
    "words": 0,
}
PRM = {"lr": 0.01, "momentum": 0.9, "dropout": 0.2, "batch": 2, "width": 8}


def net(init: str, forward: str, *, before: str = "", head: str = HEAD, base: str = "nn.Module", body: str = "") -> str:
    """A file with a class Net: lines of its constructor and of its forward, what stands before and in it."""
    return "\n".join(
        [
            dedent(head),
            dedent(before),
            f"class Net({base}):",
            indent(dedent(body), "    "),
            "    def __init__(self, in_shape, out_shape, prm, device):",
            "        super().__init__()",
            indent(dedent(init).strip(), "        "),
            "",
            "    def forward(self, x):",
            indent(dedent(forward).strip(), "        "),
            GLUE,
        ]
    )


INIT = """
self.one = nn.Conv2d(3, 8, 3, padding=1)
self.norm = nn.BatchNorm2d(8)
self.two = nn.Conv2d(8, 8, 3, padding=1)
self.head = nn.Linear(8, out_shape[0])
"""
FORWARD = """
y = F.relu(self.norm(self.one(x)))
y = y + self.two(y)
return self.head(y.mean((2, 3)))
"""
#: A small residual network, against which most cases stand.
PLAIN = net(INIT, FORWARD)


def pair(codes: Iterable[str]) -> tuple[str, str]:
    """Two codes that differ in one thing."""
    one, other = codes
    return one, other


BLOCK = """
class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.conv = nn.Conv2d(n, n, 3, padding=1)

    def forward(self, x):
        return x + F.relu(self.conv(x))
"""


def body(forward: str, **options: str) -> str:
    """The small network with another forward."""
    return net(INIT, forward, **options)


def chain(init: str, forward: str, **options: str) -> str:
    """A stem, what is given, and a head; `forward` brings `x` from 8 channels to 8 or as many as `width` says."""
    width = options.pop("width", "8")
    init = f"self.stem = nn.Conv2d(3, 8, 3, padding=1)\nself.head = nn.Linear({width}, out_shape[0])\n{dedent(init)}"
    return net(init, f"x = self.stem(x)\n{dedent(forward)}\nreturn self.head(x.mean((2, 3)))", **options)


THREE = """
self.a = nn.Conv2d(8, 8, 3, padding=1)
self.b = nn.Conv2d(8, 8, 3, padding=1)
self.c = nn.Conv2d(8, 8, 3, padding=1)
"""
UNROLLED = chain(THREE, "x = self.a(x).relu()\nx = self.b(x).relu()\nx = self.c(x).relu()")
ONE = "self.a = nn.Conv2d(8, 8, 3, padding=1)"
TWO = ONE + "\nself.b = nn.Conv2d(8, 8, 3, padding=1)"
TOWER = "self.s = nn.Sequential(nn.Conv2d({}, 1), nn.Conv2d({}, 1), nn.Conv2d({}, 1))"
MAKE = "def make(kind):\n    return {'relu': nn.ReLU, 'tanh': nn.Tanh}[kind]()\n"
GATED = chain(TWO, "x = x * torch.sigmoid(self.a(x.mean((2, 3), keepdim=True)))")

SAME: dict[str, tuple[str, str]] = {
    "other names": (PLAIN, PLAIN.replace("one", "conv_a").replace("norm", "bn").replace("y", "hidden_state")),
    "another order of definitions": (
        PLAIN,
        net("\n".join(reversed(INIT.strip().splitlines())), FORWARD),
    ),
    "formatting": (PLAIN, PLAIN.replace("(3, 8, 3, padding=1)", "(\n    3,\n    8,  3,\n    padding = 1,\n)")),
    "comments": (PLAIN, PLAIN.replace("y = y +", "# the residual\n        y = y +") + "# the end\n"),
    "docstrings": (PLAIN, PLAIN.replace("class Net(nn.Module):", 'class Net(nn.Module):\n    """A network."""\n')),
    "type hints": (
        PLAIN,
        PLAIN.replace("def forward(self, x):", "def forward(self, x: torch.Tensor) -> torch.Tensor:").replace(
            "def __init__(self, in_shape,", "def __init__(self, in_shape: tuple,"
        ),
    ),
    "imported by name": (
        PLAIN,
        net(
            INIT.replace("nn.", ""),
            FORWARD.replace("F.", ""),
            base="Module",
            head="import torch\nfrom torch.nn import *\nfrom torch.nn.functional import relu",
        ),
    ),
    "imported under other names": (
        PLAIN,
        PLAIN.replace("import torch.nn as nn", "from torch import nn as layers")
        .replace("nn.", "layers.")
        .replace("import torch.layers.functional as F", "from torch.nn import functional as F"),
    ),
    "unused imports": (PLAIN, "import os, math, json\nfrom collections import OrderedDict\n" + PLAIN),
    "super with arguments": (PLAIN, PLAIN.replace("super().__init__()", "super(Net, self).__init__()")),
    "super by name": (PLAIN, PLAIN.replace("super().__init__()", "nn.Module.__init__(self)")),
    "other training glue": (PLAIN, PLAIN.replace("torch.optim.SGD", "torch.optim.AdamW")),
    "a helper function": (
        PLAIN,
        body(
            "y = stem(self, x)\nreturn self.head((y + self.two(y)).mean((2, 3)))",
            before="def stem(net, x):\n    return F.relu(net.norm(net.one(x)))",
        ),
    ),
    "a helper method": (
        PLAIN,
        body(
            "y = self.stem(x)\nreturn self.head((y + self.two(y)).mean((2, 3)))",
            body="def stem(self, x):\n    return F.relu(self.norm(self.one(x)))",
        ),
    ),
    "a lambda": (PLAIN, body("act = lambda t: F.relu(t)\n" + FORWARD.replace("F.relu", "act"))),
    "nn.Sequential": (
        PLAIN,
        net(
            """
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            self.two = nn.Conv2d(8, 8, 3, padding=1)
            self.head = nn.Linear(8, out_shape[0])
            """,
            "y = self.stem(x)\ny = y + self.two(y)\nreturn self.head(y.mean((2, 3)))",
        ),
    ),
    "a sequence with names": (
        UNROLLED,
        chain(
            """
            self.body = nn.Sequential()
            for name in "abc":
                self.body.add_module(name, nn.Conv2d(8, 8, 3, padding=1))
                self.body.add_module(name + "_act", nn.ReLU(inplace=True))
            """,
            "x = self.body(x)",
        ),
    ),
    "a loop": (
        UNROLLED,
        chain(
            "self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))",
            "for layer in self.layers:\n    x = F.relu(layer(x))",
        ),
    ),
    "a loop over attributes": (UNROLLED, chain(THREE, 'for name in "abc":\n    x = getattr(self, name)(x).relu()')),
    "a fold": (
        UNROLLED,
        chain(
            THREE,
            "x = reduce(lambda x, layer: layer(x).relu(), [self.a, self.b, self.c], x)",
            before="from functools import reduce",
        ),
    ),
    "recursion": (
        UNROLLED,
        chain(
            "self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))",
            "x = self.go(x, 0)",
            body="""
            def go(self, x, place):
                return x if place == 3 else self.go(self.layers[place](x).relu(), place + 1)
            """,
        ),
    ),
    "a dictionary of modules": (
        UNROLLED,
        chain(
            "self.layers = nn.ModuleDict({name: nn.Conv2d(8, 8, 3, padding=1) for name in 'abc'})",
            "for name in sorted(self.layers):\n    x = self.layers[name](x).relu()",
        ),
    ),
    "a function that makes layers": (
        UNROLLED,
        chain(
            "self.body = make(8, 3)",
            "x = self.body(x)",
            before="""
            def make(n, times):
                layers = []
                for _ in range(times):
                    layers += [nn.Conv2d(n, n, kernel_size=3, padding=1), nn.ReLU()]
                return nn.Sequential(*layers)
            """,
        ),
    ),
    "modules in modules": (
        chain(ONE, "x = x + F.relu(self.a(x))"),
        chain("self.block = Block(8)", "x = self.block(x)", before=BLOCK),
    ),
    "a module defined below": (
        chain("self.block = Block(8)", "x = self.block(x)", before=BLOCK),
        chain("self.block = Block(8)", "x = self.block(x)") + dedent(BLOCK),
    ),
    "activation by function, module, method": (
        chain(ONE + "\nself.act = nn.GELU()", "x = self.act(self.a(x))"),
        chain(ONE, "x = F.gelu(self.a(x))"),
    ),
    "sums": (chain(TWO, "x = self.a(x) + self.b(x)"), chain(TWO, "x = torch.add(self.b(x), self.a(x))")),
    "in place": (chain(TWO, "x = F.relu(self.a(x) + x)"), chain(TWO, "y = self.a(x)\ny += x\nx = y.relu_()")),
    "keyword arguments": (
        chain("self.a = nn.Conv2d(8, 8, 3, 1, 1)", "x = self.a(x)"),
        chain("self.a = nn.Conv2d(padding=1, stride=1, kernel_size=3, out_channels=8, in_channels=8)", "x = self.a(x)"),
    ),
    "defaults": (
        chain(ONE, "x = self.a(x)"),
        chain("self.a = nn.Conv2d(8, 8, 3, 1, 1, 1, 1, True, 'zeros')", "x = self.a(x)"),
    ),
    "one number for all dimensions": (
        chain(ONE, "x = self.a(x)"),
        chain("self.a = nn.Conv2d(8, 8, (3, 3), padding='same')", "x = self.a(x)"),
    ),
    "numbers that are worked out": (
        chain(ONE, "x = self.a(x)"),
        chain("n = 2 ** 3\nself.a = nn.Conv2d(n, n, 1 + 2, padding=3 // 2)", "x = self.a(x)"),
    ),
    "a hyperparameter": (chain(ONE, "x = self.a(x)"), chain(ONE.replace("8, 8", "8, prm['width']"), "x = self.a(x)")),
    "a constant in the class body": (
        chain(ONE, "x = self.a(x)"),
        chain(
            "self.a = nn.Conv2d(8, self.WIDTH, self.KERNEL, padding=1)", "x = self.a(x)", body="WIDTH, KERNEL = 8, 3"
        ),
    ),
    "a constant of a base class": (
        chain(ONE, "x = self.a(x)"),
        chain(
            "self.a = nn.Conv2d(8, self.WIDTH, 3, padding=1)",
            "x = self.a(x)",
            before="class Base(nn.Module):\n    WIDTH = 8\n",
            base="Base",
        ),
    ),
    "a constant in a data class": (
        chain(ONE, "x = self.a(x)"),
        chain(
            "c = Config()\nself.a = nn.Conv2d(8, c.width, c.kernel, padding=1)",
            "x = self.a(x)",
            before="from dataclasses import dataclass\n\n@dataclass\nclass Config:\n    width: int = 8\n    kernel: int = 3\n",
        ),
    ),
    "layers of a base class": (
        chain(ONE, "x = self.a(x).relu()"),
        chain(
            "",
            "x = self.run(x)",
            before="""
            class Base(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.a = nn.Conv2d(8, 8, 3, padding=1)

                def run(self, x):
                    return self.a(x).relu()
            """,
            base="Base",
        ),
    ),
    "an inherited forward": (
        chain("self.block = Block(8)", "x = self.block(x)", before=BLOCK),
        chain("self.block = Mine(8)", "x = self.block(x)", before=BLOCK + "\n\nclass Mine(Block):\n    pass\n"),
    ),
    "a class that nobody uses": (PLAIN, BLOCK.join([HEAD, PLAIN])),
    "a block that is never called": (chain(ONE, "x = self.a(x)"), chain(TWO, "x = self.a(x)")),
    "a block whose result is dropped": (chain(ONE, "x = self.a(x)"), chain(TWO, "y = self.b(x)\nx = self.a(x)")),
    "a branch that is never taken": (
        chain(TWO, "x = self.a(x)"),
        chain(TWO, "x = self.a(x) if x.dim() == 4 else self.b(x)"),
    ),
    "nothing done": (
        chain(ONE, "x = self.a(x)"),
        chain(ONE + "\nself.drop = nn.Dropout(0.0)\nself.skip = nn.Identity()", "x = self.skip(self.drop(self.a(x)))"),
    ),
    "one layer under two names": (
        chain(ONE, "x = self.a(self.a(x))"),
        chain(ONE + "\nself.b = self.a", "x = self.b(self.a(x))"),
    ),
    "global pooling": (
        PLAIN,
        net(
            INIT + "\nself.pool = nn.AdaptiveAvgPool2d((1, 1))",
            FORWARD.replace("y.mean((2, 3))", "torch.flatten(self.pool(y), 1)"),
        ),
    ),
    "a mean with dimensions put back": (
        GATED,
        GATED.replace("x.mean((2, 3), keepdim=True)", "x.mean((2, 3))[:, :, None, None]"),
    ),
    "a mean in steps of shape": (
        GATED,
        GATED.replace("x.mean((2, 3), keepdim=True)", "x.flatten(2).mean(2).view(2, 8, 1, 1)").replace(
            "x.flatten(2).mean(2)", "F.adaptive_avg_pool2d(x, 1).squeeze()"
        ),
    ),
    "pooling without a stride": (
        chain("self.pool = nn.MaxPool2d(kernel_size=2, stride=2)", "x = self.pool(x)"),
        chain("", "x = F.max_pool2d(x, 2)"),
    ),
    "pooling of means without a stride": (
        chain("self.pool = nn.AvgPool2d((2, 2), 2)", "x = self.pool(x)"),
        chain("", "x = F.avg_pool2d(x, 2)"),
    ),
    "halves": (
        chain("", "a, b = x.chunk(2, dim=1)\nx = torch.cat([b, a], 1)"),
        chain("", "n = x.shape[1] // 2\nx = torch.cat((x[:, n:], x[:, :n]), dim=-3)"),
    ),
    "softmax": (chain("self.s = nn.Softmax(dim=1)", "x = self.s(x)"), chain("", "x = x.softmax(-3)")),
    "an own parameter": (
        chain("self.scale = nn.Parameter(torch.ones(8, 1, 1))", "x = x * self.scale"),
        chain(
            "self.register_parameter('gamma', nn.Parameter(torch.full((8, 1, 1), 0.5)))", "x = torch.mul(self.gamma, x)"
        ),
    ),
    "an unused buffer": (
        chain("self.register_buffer('k', torch.ones(2))", "x = x.relu()"),
        chain("", "x = x.relu()"),
    ),
    "an unused constant of the file": (
        chain("", "x = F.leaky_relu(x, SLOPE)", before="SLOPE = 0.1\n"),
        chain("", "x = F.leaky_relu(x, SLOPE)", before="SLOPE, UNUSED = 0.1, 7\n"),
    ),
    "widths from the number of a loop": (
        chain(TOWER.format("8, 8", "8, 16", "16, 24"), "x = self.s(x)", width="24"),
        chain(
            "self.s = nn.Sequential(*[nn.Conv2d(max(8, 8 * i), 8 * i + 8, 1) for i in range(3)])",
            "x = self.s(x)",
            width="24",
        ),
    ),
    "a list that is written to": (
        chain("self.s = nn.Conv2d(8, 16, 1)", "x = self.s(x)", width="16"),
        chain("w = [8, 12]\nw[1] = 16\nself.s = nn.Conv2d(w[0], w[1], 1)", "x = self.s(x)", width="16"),
    ),
    "a default argument that every call overrides": pair(
        chain("", "x = act(x, slope=0.1)", before=f"def act(x, slope={slope}):\n    return F.leaky_relu(x, slope)\n")
        for slope in (0.1, 0.3)
    ),
    "an argument of an own function under another name, by place": (
        chain("", "x = act(x, slope=0.1)", before="def act(x, slope):\n    return F.leaky_relu(x, slope)\n"),
        chain("", "x = act(x, 0.1)", before="def act(x, steep):\n    return F.leaky_relu(x, steep)\n"),
    ),
    # arch_uid calls this one different; a sum has no order, so that only the names of the two branches differ
    "activations that change places across a sum": pair(
        chain(TWO, f"x = F.{one}(self.a(x)) + F.{other}(self.b(x))")
        for one, other in (("elu", "gelu"), ("gelu", "elu"))
    ),
}

SHIFTED = chain(ONE, "x = self.a(x) - x")

DIFFERENT: dict[str, tuple[str, str]] = {
    "a constant in the class body": pair(
        chain("self.a = nn.Conv2d(8, 8, self.K, padding=self.K // 2)", "x = self.a(x)", body=f"K = {k}") for k in (3, 5)
    ),
    "a constant of a base class": pair(
        chain("", "x = F.leaky_relu(x, self.SLOPE)", before=f"class Base(nn.Module):\n    SLOPE = {s}\n", base="Base")
        for s in (0.1, 0.2)
    ),
    "another base class": pair(
        chain(
            "self.block = Mine(8)",
            "x = self.block(x)",
            before=f"{BLOCK}\n\nclass Other(Block):\n    def forward(self, x):\n        return F.relu(self.conv(x))\n\n\n"
            f"class Mine({base}):\n    pass\n",
        )
        for base in ("Block", "Other")
    ),
    "an overridden method": pair(
        chain(
            "",
            "x = self.act(x)",
            before="class Base(nn.Module):\n    def act(self, x):\n        return x.relu()\n",
            base="Base",
            body=own,
        )
        for own in ("", "def act(self, x):\n    return x.tanh()")
    ),
    "the order of arguments": pair(
        chain(ONE, f"x = gap({given})", before="def gap(one, other):\n    return one - other.sigmoid()\n")
        for given in ("x, self.a(x)", "self.a(x), x")
    ),
    "arguments by name": pair(
        chain(
            ONE,
            f"x = gap(one={one}, other={other})",
            before="def gap(one, other):\n    return one / (1 + other ** 2)\n",
        )
        for one, other in (("x", "self.a(x)"), ("self.a(x)", "x"))
    ),
    "a default argument": pair(
        chain("", "x = act(x)", before=f"def act(x, slope={slope}):\n    return F.leaky_relu(x, slope)\n")
        for slope in (0.1, 0.3)
    ),
    "the order of a difference": (SHIFTED, SHIFTED.replace("self.a(x) - x", "x - self.a(x)")),
    "the order of a quotient": (chain(ONE, "x = self.a(x) / (x + 3)"), chain(ONE, "x = (x + 3) / self.a(x)")),
    "the order of a product of matrices": (chain("", "x = x @ x.sigmoid()"), chain("", "x = x.sigmoid() @ x")),
    "the order of a concatenation": (
        chain(ONE, "x = torch.cat([x, self.a(x)], 1)", width="16"),
        chain(ONE, "x = torch.cat([self.a(x), x], 1)", width="16"),
    ),
    "a dead block and a live one": (
        chain(TWO, "y = self.b(x)\nx = self.a(x)"),
        chain(TWO, "y = self.b(x)\nx = self.a(y)"),
    ),
    "another branch": (
        chain(TWO, "x = self.a(x)"),
        chain(TWO + "\nself.deep = True", "x = self.a(x)\nif self.deep:\n    x = self.b(x)"),
    ),
    "kernel": (chain(ONE, "x = self.a(x)"), chain("self.a = nn.Conv2d(8, 8, 5, padding=2)", "x = self.a(x)")),
    "stride": (chain(ONE, "x = self.a(x)"), chain("self.a = nn.Conv2d(8, 8, 3, 2, 1)", "x = self.a(x)")),
    "padding": (chain(ONE, "x = self.a(x)"), chain("self.a = nn.Conv2d(8, 8, 3)", "x = self.a(x)")),
    "kind of padding": (
        chain(ONE, "x = self.a(x)"),
        chain(ONE.replace("=1)", "=1, padding_mode='reflect')"), "x = self.a(x)"),
    ),
    "dilation": (
        chain(ONE, "x = self.a(x)"),
        chain("self.a = nn.Conv2d(8, 8, 3, padding=2, dilation=2)", "x = self.a(x)"),
    ),
    "groups": (chain(ONE, "x = self.a(x)"), chain("self.a = nn.Conv2d(8, 8, 3, padding=1, groups=8)", "x = self.a(x)")),
    "bias": (chain(ONE, "x = self.a(x)"), chain("self.a = nn.Conv2d(8, 8, 3, padding=1, bias=False)", "x = self.a(x)")),
    "width": (chain(ONE, "x = self.a(x)"), chain(ONE.replace("8, 8", "8, 12"), "x = self.a(x)", width="12")),
    "depth": (UNROLLED, chain(TWO, "x = self.a(x).relu()\nx = self.b(x).relu()")),
    "how often a loop runs": pair(chain(ONE, f"for _ in range({n}):\n    x = self.a(x)") for n in (2, 3)),
    "activation": (UNROLLED, UNROLLED.replace("relu", "tanh")),
    "the place of an activation": (
        chain(TWO, "x = self.b(self.a(x).relu())"),
        chain(TWO, "x = self.b(self.a(x)).relu()"),
    ),
    "the order of layers": (
        chain("self.s = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU())", "x = self.s(x)"),
        chain("self.s = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(8))", "x = self.s(x)"),
    ),
    "a residual": (PLAIN, PLAIN.replace("y = y + self.two(y)", "y = self.two(y)")),
    "where a residual comes from": (
        chain(TWO, "y = self.a(x)\nx = self.b(y) + y"),
        chain(TWO, "y = self.a(x)\nx = self.b(y) + x"),
    ),
    "kind of norm": (PLAIN, PLAIN.replace("nn.BatchNorm2d(8)", "nn.GroupNorm(1, 8)")),
    "constant of a norm": (PLAIN, PLAIN.replace("nn.BatchNorm2d(8)", "nn.BatchNorm2d(8, eps=1e-3)")),
    "momentum of a norm": (PLAIN, PLAIN.replace("nn.BatchNorm2d(8)", "nn.BatchNorm2d(8, momentum=0.01)")),
    "pooling": (PLAIN, PLAIN.replace("y.mean((2, 3))", "y.amax((2, 3))")),
    "shared and not": (chain(TWO, "x = self.a(self.a(x))"), chain(TWO, "x = self.b(self.a(x))")),
    "a cut gradient": (chain(TWO, "x = self.a(x) + self.b(x)"), chain(TWO, "x = self.a(x).detach() + self.b(x)")),
    "a frozen layer": (
        chain(TWO, "x = self.b(self.a(x))"),
        chain(TWO + "\nself.a.requires_grad_(False)", "x = self.b(self.a(x))"),
    ),
    "dropout": (chain("self.d = nn.Dropout(0.1)", "x = self.d(x)"), chain("self.d = nn.Dropout(0.5)", "x = self.d(x)")),
    "dropout by channel": (
        chain("self.d = nn.Dropout(0.1)", "x = self.d(x)"),
        chain("self.d = nn.Dropout2d(0.1)", "x = self.d(x)"),
    ),
    "a hyperparameter": (
        chain("", "x = F.dropout(x, 0.3, self.training)"),
        chain("self.p = prm['dropout']", "x = F.dropout(x, self.p, self.training)"),
    ),
    "values of a constant": pair(chain("", f"x = x * torch.tensor([{v}])") for v in (1.5, 2.5)),
    "dimension of softmax": (chain("", "x = x.softmax(1)"), chain("", "x = x.softmax(3)")),
    "a gate and a sum": (GATED, GATED.replace("x * torch.sigmoid", "x + torch.sigmoid")),
    "what a mean is over": (GATED, GATED.replace("x.mean((2, 3), keepdim=True)", "x.mean(3, keepdim=True)")),
    "a window's step": (chain("", "x = F.max_pool2d(x, 2)"), chain("", "x = F.max_pool2d(x, 2, stride=1)")),
    "which half": (
        chain("", "x = torch.cat([x[:, :4], x[:, :4]], 1)"),
        chain("", "x = torch.cat([x[:, 4:], x[:, 4:]], 1)"),
    ),
    "a constant of the file": pair(
        chain("", "x = F.leaky_relu(x, SLOPE)", before=f"SLOPE = {slope}\n") for slope in (0.1, 0.01)
    ),
    "a list that is written to": pair(
        chain(f"w = [8, 12]\n{line}self.s = nn.Conv2d(w[0], w[1], 1)", "x = self.s(x)", width=width)
        for line, width in (("", "12"), ("w[1] = 16\n", "16"))
    ),
    "which helper is used": pair(
        chain(
            f"self.s = {name}(8)",
            "x = self.s(x)",
            before=f"{BLOCK}\n\nclass Other(nn.Conv2d):\n    def __init__(self, n):\n        super().__init__(n, n, 1)\n",
        )
        for name in ("Block", "Other")
    ),
    "what a helper function does": pair(
        chain("self.act = make()", "x = self.act(x)", before=f"def make():\n    return nn.{act}()\n")
        for act in ("ReLU", "LeakyReLU")
    ),
    "which argument a number is": pair(
        chain(f"self.s = nn.AvgPool2d(kernel_size=2, {name})", "x = self.s(x)") for name in ("stride=1", "padding=1")
    ),
    "what a chained call is made of": pair(
        chain(f"self.s = make({name!r}).to(device)", "x = self.s(x)", before=MAKE) for name in ("relu", "tanh")
    ),
    "activations that change places": pair(
        chain(TWO, f"x = F.{other}(self.b(F.{one}(self.a(x))))") for one, other in (("elu", "gelu"), ("gelu", "elu"))
    ),
}

WIDER: dict[str, tuple[str, str]] = {
    "width": DIFFERENT["width"],
    "a wider block": pair(
        chain(f"self.a = nn.Conv2d(8, {n}, 1)\nself.b = nn.Conv2d({n}, 8, 1)", "x = x + self.b(self.a(x).relu())")
        for n in (4, 32)
    ),
    "groups, neither one nor all": pair(
        chain(f"self.a = nn.Conv2d(8, 8, 3, groups={n}, padding=1)", "x = self.a(x)") for n in (2, 4)
    ),
}

#: What G1 does not tell besides: the values of constants and the borders of parts, which follow widths.
HIDDEN_BY_WIDTHS = {"width", "a list that is written to", "values of a constant", "which half"}

_TRACE = """
import json, sys
from lemur_core.graphs.tracing.network import trace_network
given = json.load(sys.stdin)
answers = [trace_network({"code": code, "prm": given["prm"], "cases": [given["case"]]}) for code in given["codes"]]
json.dump([{name: answer.get(name) for name in ("graph", "graph_widths", "error")} for answer in answers], sys.stdout)
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What each file of the tables computes, by its text."""
    pairs = [*SAME.values(), *DIFFERENT.values(), *WIDER.values()]
    codes = list(dict.fromkeys(code for pair in pairs for code in pair))
    given = json.dumps({"codes": codes, "prm": PRM, "case": CASE})
    folder = tmp_path_factory.mktemp("networks")
    done = subprocess.run(
        [sys.executable, "-c", _TRACE], input=given, capture_output=True, text=True, cwd=folder, check=True, timeout=300
    )
    return dict(zip(codes, json.loads(done.stdout), strict=True))


def test_all_of_them_run(traced: dict[str, dict[str, str]]) -> None:
    assert {answer["error"] for answer in traced.values()} == {None}
    assert all(one != other for one, other in [*SAME.values(), *DIFFERENT.values()])


@pytest.mark.parametrize("name", SAME)
def test_the_same_in_other_words(name: str, traced: dict[str, dict[str, str]]) -> None:
    one, other = (traced[code] for code in SAME[name])
    assert one == other


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_computation(name: str, traced: dict[str, dict[str, str]]) -> None:
    one, other = (traced[code] for code in DIFFERENT[name])
    assert one["graph"] != other["graph"]
    assert (one["graph_widths"] == other["graph_widths"]) == (name in HIDDEN_BY_WIDTHS)


@pytest.mark.parametrize("name", WIDER)
def test_the_same_but_for_widths(name: str, traced: dict[str, dict[str, str]]) -> None:
    one, other = (traced[code] for code in WIDER[name])
    assert one["graph"] != other["graph"]
    assert one["graph_widths"] == other["graph_widths"]
