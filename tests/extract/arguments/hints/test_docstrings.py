"""What docstrings say: shapes."""

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
