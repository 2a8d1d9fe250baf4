"""Descriptions of inputs: what they say is what Python makes of them."""

import types
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from extract.probing.tensors import (
    COMPLEX,
    FLOAT,
    INDEX,
    MASK,
    POSITIVE,
    Fields,
    Items,
    Literal,
    Tensor,
    Value,
    change_tensors,
    flatten,
    tensors_in,
    told,
)

DTYPES = {
    FLOAT: torch.float32,
    INDEX: torch.int64,
    MASK: torch.bool,
    POSITIVE: torch.float32,
    COMPLEX: torch.complex64,
}
SHAPES = st.lists(st.integers(0, 5), max_size=5).map(tuple)
TENSORS = st.builds(Tensor, SHAPES, st.sampled_from(sorted(DTYPES)), st.integers(1, 9))
NAMES = st.text("abcxyz_", min_size=1, max_size=4)
VALUES = st.recursive(
    TENSORS,
    lambda inner: (
        st.builds(Items, st.lists(inner, max_size=3).map(tuple), st.booleans())
        | st.builds(
            Fields, st.dictionaries(NAMES, inner, max_size=3).map(lambda fields: tuple(fields.items())), st.booleans()
        )
    ),
    max_leaves=6,
)


def evaluated(value: Value) -> Any:
    return eval(value.expression(), {"torch": torch, "types": types})


@given(TENSORS)
def test_an_expression_makes_the_tensor(described: Tensor) -> None:
    made = evaluated(described)
    assert (tuple(made.shape), made.dtype) == (described.shape, DTYPES[described.kind])
    if described.kind == INDEX and made.numel():
        assert 0 <= int(made.min()) <= int(made.max()) < described.below
    if described.kind == POSITIVE and made.numel():
        assert 0 <= float(made.min()) <= float(made.max()) < 1
    if described.kind == MASK:
        assert bool(made.all())


@given(VALUES)
def test_containers_hold_their_tensors_in_order(described: Value) -> None:
    wanted = [(tensor.shape, DTYPES[tensor.kind]) for tensor in tensors_in(described)]
    assert [(tuple(made.shape), made.dtype) for made in flatten(evaluated(described), depth=100)] == wanted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Tensor(()), "torch.randn(())"),
        (Tensor((4,)), "torch.randn((4,))"),
        (Tensor((2, 3)), "torch.randn((2, 3))"),
        (Tensor((2,), INDEX, 7), "torch.randint(0, 7, (2,))"),
        (Literal("None"), "None"),
        (Items((Literal("1"),)), "[1]"),
        (Items((Literal("1"),), is_tuple=True), "(1,)"),
        (Items((), is_tuple=True), "()"),
        (Items((Literal("1"), Literal("2")), is_tuple=True), "(1, 2)"),
        (Fields((("a", Literal("1")),)), "{'a': 1}"),
        (Fields((("a", Literal("1")),), attributes=True), "types.SimpleNamespace(a=1)"),
    ],
)
def test_expressions(value: Value, text: str) -> None:
    assert value.expression() == text


@given(VALUES)
def test_a_change_reaches_every_tensor_and_nothing_else(described: Value) -> None:
    changed = change_tensors(described, lambda tensor: tensor.with_shape((*tensor.shape, 1)))
    assert [t.shape for t in tensors_in(changed)] == [(*t.shape, 1) for t in tensors_in(described)]
    assert [t.kind for t in tensors_in(changed)] == [t.kind for t in tensors_in(described)]
    assert change_tensors(described, lambda tensor: tensor) == described
    assert type(changed) is type(described)


def test_a_change_leaves_literals() -> None:
    value = Fields((("a", Literal("3")), ("b", Items((Literal("4"), Tensor((2,)))))))
    changed = change_tensors(value, lambda tensor: Literal("5"))
    assert changed.expression() == "{'a': 3, 'b': [4, 5]}"


ONE, TWO, THREE = torch.tensor(1), torch.tensor(2), torch.tensor(3)
Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    logits: torch.Tensor
    more: object = None


def _round() -> list[Any]:
    found: list[Any] = [ONE]
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (ONE, [1]),
        (None, []),
        ("text", []),
        (3, []),
        ([ONE, (TWO, {"a": THREE})], [1, 2, 3]),
        (Pair(ONE, [TWO]), [1, 2]),
        (OrderedDict(b=TWO, a=ONE), [2, 1]),
        (Output(TWO, Output(ONE)), [2, 1]),
        (types.SimpleNamespace(x=ONE), [1]),
        (nn.Linear(1, 1), []),
        (nn.Parameter(torch.tensor(4.0)), [4]),
        (nn.Linear, []),
        ({ONE}, [1]),
    ],
)
def test_flatten(value: object, found: list[int]) -> None:
    assert [int(tensor) for tensor in flatten(value)] == found


def test_flatten_ends() -> None:
    assert {int(tensor) for tensor in flatten(_round())} == {1}
    deep: Any = ONE
    for _ in range(9):
        deep = [deep]
    assert flatten(deep) == []
    assert flatten(deep[0]) == [ONE]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, 16, 8, 8), "float32 2x16x8x8"),
        (torch.zeros((), dtype=torch.int64), "int64 scalar"),
        (torch.zeros(0, dtype=torch.bfloat16), "bfloat16 0"),
        (object(), "object"),
        ({"a": 1}, "dict"),
    ],
)
def test_told(value: object, text: str) -> None:
    assert told(value) == text
