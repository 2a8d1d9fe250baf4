"""Repairs of inputs: what a real failure of PyTorch or Python suggests, and that it works when tried."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from extract.arguments.forwarding import as_call
from extract.arguments.repairs import read_compared_numbers, repairs
from extract.arguments.resizing import FailedCall, _resize_axis, change_rank
from extract.arguments.trials import AttemptError, attempt
from extract.arguments.values.inputs import (
    FLOAT,
    INDEX,
    MASK,
    POSITIVE,
    UNMASKED,
    FieldValues,
    Inputs,
    Layers,
    ListOfValues,
    Literal,
    Tensor,
    tensors_in,
)
from tests.builders.suites import table

IMAGE, TOKENS, ROWS = Tensor((2, 32, 16, 16)), Tensor((2, 16, 32)), Tensor((2, 32))
NONE = Literal("None")


def module(forward: str, init: str = "", arguments: str = "x") -> str:
    """The text of a class with one line of forward, and one of its constructor."""
    lines = "\n        ".join(forward.split("\n"))
    return f"""
class A(nn.Module):
    def __init__(self):
        super().__init__()
        {init or "pass"}

    def forward(self, {arguments}):
        {lines}
"""


def layer(text: str) -> str:
    return module("return self.layer(x)", f"self.layer = {text}")


#: Which failure, the block, the inputs that fail, and how early a repair that works must stand.
CASES: tuple[tuple[str, str, Inputs, int], ...] = (
    (
        "a half of the channels",
        module("return self.layer(x.chunk(2, 1)[0])", "self.layer = nn.Conv2d(32, 8, 1)"),
        (("x", IMAGE),),
        4,
    ),
    ("two corners of a box", module("return x[..., 2:] - x[..., :2]"), (("x", ROWS),), 2),
    ("pieces of a split", module("return torch.split(x, [8, 16], dim=1)[0]"), (("x", IMAGE),), 2),
    ("bytes", module("if x.dtype != torch.uint8:\n    raise TypeError('Only torch.uint8 images')\nreturn x"), (("x", IMAGE),), 4),
    (
        "as many dimensions of both",
        module("b, n, c = x.shape\nB, N, C = y.shape\nreturn x @ y.transpose(1, 2)", arguments="x, y"),
        (("x", IMAGE), ("y", IMAGE)),
        3,
    ),
    ("channels of a convolution", layer("nn.Conv2d(3, 8, 3)"), (("x", IMAGE),), 1),
    ("channels of a 1-D convolution", layer("nn.Conv1d(8, 8, 3)"), (("x", Tensor((2, 32, 16))),), 1),
    ("channels of a transposed convolution", layer("nn.ConvTranspose2d(12, 8, 3)"), (("x", IMAGE),), 4),
    ("channels of a grouped convolution", layer("nn.Conv2d(24, 24, 3, groups=8)"), (("x", IMAGE),), 1),
    ("features of a linear layer", layer("nn.Linear(48, 8)"), (("x", TOKENS),), 2),
    ("features of a linear layer without tokens", layer("nn.Linear(48, 8)"), (("x", ROWS),), 1),
    ("features after flattening", layer("nn.Sequential(nn.Flatten(), nn.Linear(32 * 64, 8))"), (("x", IMAGE),), 8),
    ("a layer norm", layer("nn.LayerNorm(24)"), (("x", TOKENS),), 1),
    ("a layer norm over maps", layer("nn.LayerNorm((32, 8, 8))"), (("x", IMAGE),), 12),
    ("a pool that is longer than the sequence", layer("nn.AvgPool1d(40)"), (("x", TOKENS),), 1),
    ("a kernel that is longer than the sequence", layer("nn.Conv1d(16, 8, 100)"), (("x", TOKENS),), 2),
    ("a kernel that is larger than the image", layer("nn.Conv2d(32, 8, 40)"), (("x", IMAGE),), 3),
    ("one dimension less", module("return torch.cat([x[:, None], y], 1)", arguments="x, y"), (("x", ROWS), ("y", IMAGE)), 8),
    ("items that an assertion names", module("assert 'a' in x and 'b' in x\nreturn x['b']"), (("x", ROWS),), 1),
    ("a target like its prediction", module("return x[y > 0].sum()", arguments="x, y"), (("x", IMAGE), ("y", TOKENS)), 4),
    ("an item with a computed key", module("return [x[f'{key}_at'] for key in 'ab'][0]"), (("x", FieldValues((("a_at", ROWS),))),), 1),
    ("an item that must be there", module("if 'a' not in x or not len(x['a']):\n    raise ValueError('no a')\nreturn x['a']"), (("x", ROWS),), 1),
    ("items of a dict", module("return x['a'] * x['b'].sum()"), (("x", FieldValues((("a", ROWS),))),), 1),
    ("attributes of an object", module("return x.pos + 1"), (("x", IMAGE),), 1),
    ("another attribute of an object", module("return x.a + x.b.sum()"), (("x", FieldValues((("a", ROWS),), by_key=False, by_attribute=True)),), 1),
    ("an item of an object", module("return x.a + x['a']"), (("x", FieldValues((("a", ROWS),), by_key=False, by_attribute=True)),), 1),
    ("an attribute of a dict", module("return x['a'] + x.b.sum()"), (("x", FieldValues((("a", ROWS),))),), 1),
    (
        "nodes and edges of a graph",
        module("return x.V[x.edge_index[0]] * x.E"),
        (("x", FieldValues((("V", TOKENS), ("E", TOKENS)), by_key=False, by_attribute=True)),),
        1,
    ),
    (
        "two inputs side by side",
        module("return self.layer(torch.cat((x, y), -1))", "self.layer = nn.Linear(46, 2)", arguments="x, y"),
        (("x", ROWS), ("y", ROWS)),
        4,
    ),
    ("numbers of a range", module("return torch.arange(i, j)", arguments="i, j"), (("i", IMAGE), ("j", IMAGE)), 2),
    ("a number of repeats", module("return torch.zeros(1, 3).repeat(n, 1)", arguments="n"), (("n", IMAGE),), 2),
    ("a height", module("return x.view(-1, height)", arguments="x, height"), (("x", IMAGE), ("height", IMAGE)), 3),
    ("axes to permute", module("return x.permute(0, 2, 1)"), (("x", IMAGE),), 1),
    ("channels of a view", module("return y.view(2, x.shape[1], 2)", arguments="x, y"), (("x", IMAGE), ("y", Tensor((2, 20)))), 3),
    ("small positive integers", module("return F.embedding(x.long(), torch.ones(1, 4))"), (("x", TOKENS),), 6),
    (
        "what takes too long",
        module("if x.numel() > 60000:\n    raise TimeoutError('ran too long')\nreturn x"),
        (("x", Tensor((2, 8, 3, 56, 56))),),
        1,
    ),
    ("complex numbers", module("return x.imag"), (("x", IMAGE),), 1),
    ("a view of another size", module("return x.view(3, 3)"), (("x", ROWS),), 1),
    ("one sample", module("if x.shape[0] != 1:\n    raise ValueError(f'expected 1, got {x.shape[0]}')\nreturn x"), (("x", IMAGE),), 2),
    ("six axes of which the last are unpacked with a device", module("b, h, w, m, n, c, d = *x.shape, 0\nreturn x"), (("x", TOKENS),), 3),
    ("a batch norm", layer("nn.BatchNorm2d(20)"), (("x", IMAGE),), 1),
    ("a group norm", layer("nn.GroupNorm(4, 20)"), (("x", IMAGE),), 4),
    ("attention", module("return self.layer(x, x, x)", "self.layer = nn.MultiheadAttention(24, 4)"), (("x", TOKENS),), 2),
    ("an LSTM", layer("nn.LSTM(24, 8)"), (("x", TOKENS),), 2),
    ("a batched product", module("return torch.bmm(x, x)"), (("x", TOKENS),), 4),
    ("rank of a batch norm", layer("nn.BatchNorm2d(32)"), (("x", TOKENS),), 2),
    ("rank of a 3-D convolution", layer("nn.Conv3d(32, 8, 1)"), (("x", Tensor((2, 32))),), 3),
    ("unpacked sizes of images", module("b, c, h, w = x.shape\nreturn x.view(b, c, h * w)"), (("x", TOKENS),), 1),
    ("unpacked sizes of tokens", module("b, n, c = x.size()\nreturn x.reshape(b, c, n)"), (("x", IMAGE),), 1),
    ("unpacked sizes of rows", module("b, c = x.shape\nreturn x"), (("x", IMAGE),), 1),
    ("an index too many", module("return x[:, :, 0, 0]"), (("x", TOKENS),), 2),
    ("a dimension out of range", module("return x.mean(3)"), (("x", TOKENS),), 2),
    ("indices of an embedding", layer("nn.Embedding(8, 4)"), (("x", TOKENS),), 3),
    ("a seventh number of a box", module("return x[:, 6].cos()"), (("x", Tensor((8, 5))),), 2),
    ("the angle of a box", module("return rois[:, 5].cos() * x.mean()", arguments="x, rois"), (("x", IMAGE), ("rois", Literal("torch.tensor([[0.0, 1.0, 1.0, 6.0, 6.0]])"))), 2),
    ("an index beyond the embedding", layer("nn.Embedding(1, 4)"), (("x", Tensor((2, 64), INDEX, 2)),), 3),
    ("one-hot of classes", module("return F.one_hot(x, 8)"), (("x", ROWS),), 3),
    ("indices to gather", module("return x.gather(1, at)", arguments="x, at"), (("x", ROWS), ("at", ROWS)), 6),
    (
        "a mask that is no mask",
        module("return x.masked_fill(mask, 0.0)", arguments="x, mask"),
        (("x", ROWS), ("mask", ROWS)),
        6,
    ),
    ("numbers for indices", module("return x.mean(1)"), (("x", Tensor((2, 8), INDEX)),), 4),
    (
        "probabilities",
        module("return F.binary_cross_entropy(x, target)", arguments="x, target"),
        (("x", ROWS), ("target", Tensor((2, 32), POSITIVE))),
        2,
    ),
    ("an argument that is None", module("return x + skip", arguments="x, skip=None"), (("x", IMAGE),), 1),
    ("an argument whose default is None", module("return x + skip.mean()", arguments="x, skip=None"), (("x", IMAGE), ("skip", NONE)), 1),
    (
        "an argument that is asked for",
        module("if skip is None:\n    raise ValueError('skip must be given')\nreturn skip * x", arguments="x, skip=None"),
        (("x", TOKENS),),
        1,
    ),
    ("a loop over maps", module("return [f.flatten(2) @ f.shape[3] if 0 else f.size()[3] * f for f in x]"), (("x", IMAGE),), 60),
    ("items of a tensor", module("return sum(self.norm(x[i]) for i in range(2))", "self.norm = nn.BatchNorm2d(32)"), (("x", IMAGE),), 60),
    ("a place of a list", module("x[0] = x[0][:, 0].flatten(1)\nreturn x[0]"), (("x", IMAGE),), 60),
    (
        "neighbours of another rank than the main input",
        module("b, n, k = at.shape\nreturn x[:, :n] + at.sum(-1, keepdim=True)", arguments="x, at"),
        (("x", Tensor((2, 32, 8))), ("at", Tensor((2, 16), INDEX))),
        8,
    ),
    ("maps with a last axis of one", module("return torch.cat([x, y[..., :1]], 1)", arguments="x, y"), (("x", Tensor((2, 8, 5))), ("y", Tensor((2, 8, 5, 4)))), 8),
    ("rows beside maps", module("if y.shape[1:] != (16,):\n    raise ValueError('no rows')\nreturn x * y.sum()", arguments="x, y"), (("x", IMAGE), ("y", Tensor((2, 16, 16)))), 16),
    (
        "maps and their positions",
        module("return [x.flatten(2) + p.flatten(2) for x, p in zip(xs, ps)]", arguments="xs, ps"),
        (("xs", ListOfValues((IMAGE, IMAGE))), ("ps", TOKENS)),
        12,
    ),
    ("as many maps as levels", module("assert len(xs) == self.levels\nreturn xs[0]", "self.levels = 4", arguments="xs"), (("xs", ListOfValues((IMAGE, IMAGE))),), 8),
    ("tokens of several levels", module("return [t.flatten(2) for t in x]"), (("x", TOKENS),), 12),
    ("maps to concatenate", module("return torch.cat(x, 1)"), (("x", IMAGE),), 8),
    ("maps of falling sizes", module("return x[0] + F.interpolate(x[1], scale_factor=2)"), (("x", IMAGE),), 16),
    ("more maps", module("return x[2].mean() + x[0].mean()"), (("x", ListOfValues((IMAGE, IMAGE))),), 4),
    ("an assertion on a size", module("assert x.shape[1] == 16\nreturn x"), (("x", IMAGE),), 2),
    ("an assertion with a message", module("assert x.size(-1) == 24, f'no {x.size(-1)}'\nreturn x"), (("x", TOKENS),), 2),
    ("a condition on a size", module("if x.shape[-1] != 12:\n    raise ValueError('no')\nreturn x"), (("x", TOKENS),), 2),
    ("an assertion on two sizes", module("assert x.shape[-2:] == (8, 8)\nreturn x"), (("x", IMAGE),), 8),
    ("an assertion on dimensions", module("assert x.ndim == 4\nreturn x"), (("x", TOKENS),), 1),
    ("an assertion on len(x.shape)", module("assert len(x.shape) == 2\nreturn x"), (("x", TOKENS),), 4),
    ("a condition on x.dim()", module("if x.dim() != 5:\n    raise RuntimeError('no')\nreturn x"), (("x", IMAGE),), 1),
    ("an assertion on a model's size", module("b, c, h, w = x.shape\nassert h == self.side and w == self.side\nreturn x", "self.side = 28"), (("x", IMAGE),), 4),
    ("a layout in brackets", module("if x.shape[2:] != (4,):\n    raise ValueError('boxes must be [B, N, 4]')\nreturn x"), (("x", TOKENS),), 4),
    ("a product of two inputs", module("return x @ y", arguments="x, y"), (("x", ROWS), ("y", ROWS)), 16),
    ("sizes that must match", module("return torch.cat([x, self.table.expand(2, -1, -1)], 2)", "self.table = torch.zeros(1, 49, 8)"), (("x", TOKENS),), 16),
    ("positions for 64 tokens", module("return x + self.table", "self.table = torch.zeros(1, 64, 32)"), (("x", TOKENS),), 16),
    ("a size that divides", module("b, c, h, w = x.shape\nreturn x.view(b, c, h // 7, 7, w // 7, 7)"), (("x", IMAGE),), 16),
)  # fmt: skip


#: The same, of failures that nothing mends yet.
UNMENDED: tuple[tuple[str, str, Inputs, int], ...] = (
    ("a dict with a long key, of maps", module("return x['features']"), (("x", IMAGE),), 3),
)


@pytest.mark.parametrize(("text", "inputs", "within"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_repair_works(
    fails: Callable[..., tuple[Any, FailedCall]], first_repair: Any, text: str, inputs: Inputs, within: int
) -> None:
    failed, at = fails(text, inputs)
    place, repaired = first_repair(failed, at)
    assert repaired != inputs
    assert place < within, f"{at.failure.message}: first {place} repairs do not work"


@pytest.mark.xfail(strict=True, reason="a tensor takes a string for indices: `too many indices`, no word of a dict")
@pytest.mark.parametrize(
    ("text", "inputs", "within"), [case[1:] for case in UNMENDED], ids=[case[0] for case in UNMENDED]
)
def test_a_repair_would_work(fails: Any, first_repair: Any, text: str, inputs: Inputs, within: int) -> None:
    place, _ = first_repair(*fails(text, inputs))
    assert place < within


def test_repairs_can_be_evaluated_and_leave_the_rest(fails: Any, names: Any) -> None:
    """Of two arguments, one stays in most repairs; every one is an expression that Python takes."""
    _, at = fails(module("return F.linear(x, y.mean())", arguments="x, y"), (("x", TOKENS), ("y", IMAGE)))
    found = list(repairs(at))
    assert found
    for item in found:
        assert [name for name, _ in item] == ["x", "y"]
        for _, expression in as_call(item).kwargs:
            names().value(expression)


def test_the_named_argument_is_mended_first(fails: Any) -> None:
    _, at = fails(
        module("x = x * 2\nreturn x + y.view(4, 4, 4, 4, 4, 4)", arguments="x, y"), (("x", IMAGE), ("y", ROWS))
    )
    assert at.suspects() == ["x", "y"]
    _, at = fails(module("z = y.view(4, 4, 4, 4, 4, 4)\nreturn x + z", arguments="x, y"), (("x", IMAGE), ("y", ROWS)))
    assert at.suspects() == ["y", "x"]


# --- the parts --------------------------------------------------------------------------------------------------------


@table(__file__, "repairs.md", "Compared", globals())
def test_compared(load: Any, line: str, expected: list[tuple[int, int, str]]) -> None:
    cls = load(module(f"{line}\nreturn x"))
    with pytest.raises(AttemptError) as caught:
        attempt(lambda: cls()(torch.zeros(2, 16, 32)))
    assert read_compared_numbers(caught.value.cause.__traceback__) == expected


def test_compared_above_a_raise(load: Any) -> None:
    cls = load(module("if x.shape[1] != 3:\n    size = 4\n    raise ValueError(\n        'no'\n    )\nreturn x"))
    with pytest.raises(AttemptError) as caught:
        attempt(lambda: cls()(torch.zeros(2, 16)))
    assert read_compared_numbers(caught.value.cause.__traceback__) == [(16, 3, ""), (3, 16, "")]


@pytest.mark.parametrize(
    ("shape", "rank", "expected"),
    [
        ((2, 32, 16, 16), 4, None),
        ((2, 32, 16, 16), 3, (2, 16, 32)),
        ((2, 32, 16, 16), 2, (2, 32)),
        ((2, 32, 16, 16), 5, (2, 32, 4, 16, 16)),
        ((2, 16, 32), 4, (2, 32, 16, 16)),
        ((2, 32), 1, (2,)),
        ((2, 32), 6, (2, 1, 32, 4, 16, 16)),
        ((32,), 2, (32, 32)),
    ],
)
def test_of_rank(shape: tuple[int, ...], rank: int, expected: tuple[int, ...] | None) -> None:
    found = change_rank(Tensor(shape, MASK), rank)
    assert (found.shape if found is not None else None) == expected
    assert found is None or found.kind == MASK


@pytest.mark.parametrize(
    ("shape", "place", "expected"),
    [
        ((2, 32, 16, 16), 1, (2, 8, 16, 16)),
        ((2, 32, 16, 16), -1, (2, 32, 8, 8)),
        ((2, 32, 16, 16), -2, (2, 32, 8, 8)),
        ((2, 16, 32), 1, (2, 8, 32)),
        ((2, 16, 32), -1, (2, 16, 8)),
    ],
)
def test_sized(shape: tuple[int, ...], place: int, expected: tuple[int, ...]) -> None:
    assert _resize_axis(Tensor(shape), place, 8).shape == expected


@pytest.mark.parametrize(
    ("message", "kind", "expected"),
    [
        ("expected scalar type Long but found Float", FLOAT, INDEX),
        ("tensors used as indices must be long, byte or bool tensors", FLOAT, INDEX),
        ("expected scalar type Float but found Long", INDEX, FLOAT),
        ("masked_fill_ only supports boolean masks, but got dtype Float", FLOAT, MASK),
        ("all elements of input should be between 0 and 1", FLOAT, POSITIVE),
        ("every value that it returned is NaN", FLOAT, POSITIVE),
        ("every value that it returned is NaN", MASK, UNMASKED),
        ("mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype", INDEX, FLOAT),
    ],
)  # fmt: skip
def test_kinds_by_message(message: str, kind: str, expected: str) -> None:
    parameters = {"x": inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)}
    inputs: Inputs = (("x", Tensor((2, 8), kind)),)
    at = FailedCall(AttemptError(RuntimeError(message)), inputs, parameters, Layers((), (), embeds=False), loss=False)
    kinds = [tensor.kind for item in repairs(at) for _, value in item for tensor in tensors_in(value)]
    assert expected in kinds[:3]


def test_labels_are_classes_of_more_rows_where_nothing_comes_out(fails: Any) -> None:
    _, at = fails(module("raise ValueError('every tensor that it returned is empty')", arguments="x, y"), (("x", ROWS), ("y", Tensor((2,)))))  # fmt: skip
    assert next(repairs(at)) == (("x", Tensor((8, 32))), ("y", Tensor((8,), INDEX)))
