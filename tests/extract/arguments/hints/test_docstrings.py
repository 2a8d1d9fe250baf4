"""What docstrings say: examples, and shapes."""

import textwrap

import pytest

BLOCK = '''
import torch
from torch import nn
class Head(nn.Module):
    """A head.

{doc}
    """
    def __init__(self, width, depth=1):
        super().__init__()
    def forward(self, x, mask=None):
        return x
'''

CASES = {
    "prompts": (
        ">>> m = p.Head(8)\n>>> input = torch.rand(2, 8)\n>>> output = m(input)",
        [("8",)],
        [("torch.rand(2, 8)",)],
    ),
    "self.forward": (
        "Example:\n    >>> self = Head(8, depth=2)\n    >>> n = 3\n    >>> x = torch.rand(n, 8)\n    >>> self.forward(x)",
        [("8",)],
        [("torch.rand(3, 8)",)],
    ),
    "continuation lines": (
        ">>> m = Head(\n...     4)\n>>> y = m(torch.ones(\n...     1, 4))",
        [("4",)],
        [("torch.ones(1, 4)",)],
    ),
    "a list of inputs": (
        ">>> m = Head(2)\n>>> xs = [torch.rand(1, c) for c in (2, 4)]\n>>> m(xs)",
        [("2",)],
        [("[torch.rand(1, c) for c in (2, 4)]",)],
    ),
    "two variables at once": (
        ">>> m = Head(2)\n>>> a, b = torch.rand(2), torch.rand(3)\n>>> m(a, b)",
        [("2",)],
        [("torch.rand(2)", "torch.rand(3)")],
    ),
    "an open name": (">>> m = Head(2)\n>>> m(load_image())", [("2",)], []),
    "text that does not parse": (">>> m = Head(\n>>> Head(3)", [("3",)], []),
}


@pytest.mark.parametrize(("doc", "init", "forward"), CASES.values(), ids=CASES)
def test_examples(hints_for, doc: str, init: list[tuple[str, ...]], forward: list[tuple[str, ...]]) -> None:
    hints = hints_for("Head", a=BLOCK.format(doc=textwrap.indent(doc, "    ")))
    assert [call.args for call in hints.init] == init
    assert [call.args for call in hints.forward] == forward
    assert {call.way for call in (*hints.init, *hints.forward)} <= {"example"}


SHAPES = {
    "shape": ("Args:\n    x (Tensor): Input of shape (batch_size, seq_len, dim).", ("batch_size", "seq_len", "dim")),
    "letters": ("Args:\n    x: [B, C, H, W]", ("B", "C", "H", "W")),
    "torch": (
        "Shape:\n    - Input: :math:`(N, C_{in}, L_{in})` or more\n    - Output: :math:`(N, C)`",
        ("N", "C_in", "L_in"),
    ),
    "by x": ("Args:\n    x (Tensor): has shape (N x C x H x W)", ("N", "C", "H", "W")),
    "one dimension": ("Args:\n    x: (N,) tensor of steps", ("N",)),
    "a rank": ("x: a 1-D tensor of N steps", ("?",)),
    "a rank and its kind": ("Args:\n    x: a 3-dimensional float tensor", ("?", "?", "?")),
    "a name in parentheses": ("Args:\n    x: the steps (N)", None),
    "a type is no shape": ("Args:\n    x (Tensor, optional): the input (int, float).", None),
    "the result's is not the input's": ("Returns:\n    x: (B, C)", None),
}


@pytest.mark.parametrize(("doc", "dims"), SHAPES.values(), ids=SHAPES)
def test_documented_shapes(hints_for, doc: str, dims: tuple[str, ...] | None) -> None:
    hints = hints_for("Head", a=BLOCK.format(doc=textwrap.indent(doc, "    ")))
    assert dict(hints.inputs).get("x") == dims
