"""The shapes of inputs, from code, comments and docstrings."""

import textwrap

import pytest

CODE = {
    "unpacking": ("B, C, H, W = x.shape", ("B", "C", "H", "W")),
    "size": ("b, n, _ = x.size()", ("b", "n", "?")),
    "spread": ("b, n, _, h = *x.shape, self.heads", ("b", "n", "?")),
    "permute": ("y = x.permute(0, 3, 1, 2)", ("?",) * 4),
    "einsum": ("y = torch.einsum('bchw,cd->bdhw', x, self.w)", ("b", "c", "h", "w")),
    "rearrange": ("y = rearrange(x, 'b (h d) n -> b h n d', h=2)", ("b", "?", "n")),
    "a layer": ("y = self.conv(x)", ("?",) * 4),
    "a list of layers": ("for conv in self.convs:\n    x = conv(x)", ("?",) * 3),
    "a function of the file": ("y = self.small(x)", ("?",) * 4),
    "an assertion": ("assert x.dim() == 5", ("?",) * 5),
    "after a norm": ("x = self.norm(x)\nB, N, C = x.shape", ("B", "N", "C")),
    "a method": ("return self.attend(x, 1)", ("B", "T", "C")),
    "a class of the corpus": ("x = x + self.inner(self.norm(x))", ("b", "l", "d")),
    "not after a change of shape": ("# x: (N, L, C)\nx = self.pool_all(x)\nB, C = x.shape", ("N", "L", "C")),
    "a comment": ("# x: (N, L, C)\nreturn x", ("N", "L", "C")),
}

MODEL = """
import torch
from torch import nn
def conv3x3(a, b):
    return nn.Conv2d(a, b, 3)
class Inner(nn.Module):
    def forward(self, tokens):
        b, l, d = tokens.shape
        return tokens
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.convs = nn.ModuleList([nn.Conv1d(3, 3, 1) for _ in range(2)])
        self.small = nn.Sequential(conv3x3(1, 1), nn.ReLU())
        self.norm = nn.LayerNorm(3)
        self.inner = Inner()
    def attend(self, t, n):
        B, T, C = t.shape
        return t
    def forward(self, x):
"""


@pytest.mark.parametrize(("body", "dims"), CODE.values(), ids=CODE)
def test_dimensions_in_code(hints_for, body: str, dims: tuple[str, ...]) -> None:
    inputs = dict(hints_for("Model", a=MODEL + textwrap.indent(body, " " * 8)).inputs)
    assert inputs["x"] == dims


DOCS = {
    "shape": ("Args:\n    x (Tensor): Input of shape (batch_size, seq_len, dim).", ("batch_size", "seq_len", "dim")),
    "letters": ("Args:\n    x: [B, C, H, W]", ("B", "C", "H", "W")),
    "torch": (
        "Shape:\n    - Input: :math:`(N, C_{in}, L_{in})` or more\n    - Output: :math:`(N, C)`",
        ("N", "C_in", "L_in"),
    ),
    "by x": ("Args:\n    x (Tensor): has shape (N x C x H x W)", ("N", "C", "H", "W")),
    "a type is no shape": ("Args:\n    x (Tensor, optional): the input (int, float).", None),
    "the result's is not the input's": ("Returns:\n    x: (B, C)", None),
}


@pytest.mark.parametrize(("doc", "dims"), DOCS.values(), ids=DOCS)
def test_dimensions_in_docstrings(hints_for, doc: str, dims: tuple[str, ...] | None) -> None:
    body = f'"""Run.\n\n{doc}\n"""\nreturn x'
    inputs = dict(hints_for("Model", a=MODEL + textwrap.indent(body, " " * 8)).inputs)
    assert inputs.get("x") == dims


def test_ranks_are_those_of_all_arguments_the_surest_first(hints_for) -> None:
    body = "        # x: (N, C)\n        B, H, W = x.shape\n        return x\n"
    assert hints_for("Model", a=MODEL + body).ranks == (3, 2)


def test_a_sequence_takes_what_its_first_module_takes(hints_for) -> None:
    code = "from torch import nn\nclass Stem(nn.Sequential):\n    def __init__(self):\n        super().__init__(nn.Conv2d(1, 1, 1))\n"
    assert hints_for("Stem", a=code).inputs == (("input", ("?",) * 4),)
