"""Descriptions of inputs: what they say is what Python makes of them."""

import copy
import types
from collections import OrderedDict, namedtuple  # noqa: F401 (the page names it)
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from extract.arguments.values import inputs
from extract.arguments.values.inputs import (
    FLOAT,
    INDEX,
    MASK,
    POSITIVE,
    FieldValues,
    Layers,
    ListOfValues,
    Literal,
    Tensor,
    Value,
    change_nested,
    change_tensors,
    flatten,
    is_loss,
    layouts,
    main_values,
    propose_like_main,
    pyramid,
    read_layers,
    tensors_in,
    value_text,
    values_from_annotation,
)
from tests.builders.suites import table

DTYPES = {
    FLOAT: torch.float32,
    INDEX: torch.int64,
    MASK: torch.bool,
    POSITIVE: torch.float32,
}
SHAPES = st.lists(st.integers(0, 5), max_size=5).map(tuple)
TENSORS = st.builds(Tensor, SHAPES, st.sampled_from(sorted(DTYPES)), st.integers(1, 9))
NAMES = st.text("abcxyz_", min_size=1, max_size=4)
VALUES = st.recursive(
    TENSORS,
    lambda inner: st.builds(ListOfValues, st.lists(inner, max_size=3).map(tuple), st.booleans()),
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


@table(__file__, "inputs.md", "Expressions", globals())
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
    value = ListOfValues((Literal("3"), ListOfValues((Literal("4"), Tensor((2,))))))
    changed = change_tensors(value, lambda tensor: Literal("5"))
    assert changed.expression() == "[3, [4, 5]]"


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


@table(__file__, "inputs.md", "Flatten", globals())
def test_flatten(value: object, found: list[int]) -> None:
    assert [int(tensor) for tensor in flatten(value)] == found


def test_what_is_read_by_key_and_as_attribute() -> None:
    """Its text alone makes it; copies and changes leave it as it is, and what it lacks is an attribute that it lacks."""
    written = FieldValues((("a", Tensor((2,))), ("b", Literal("3"))), by_attribute=True).expression()
    made = eval(written, {"torch": torch})
    for record in (made, copy.deepcopy(made), change_nested(made, lambda tensor: tensor * 1)):
        assert record.a is record["a"]
        assert (record.b, flatten(record)) == (3, [record.a])
        assert not hasattr(record, "c")
        record.c = 4
        assert record["c"] == 4


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
def test_value_text(value: object, text: str) -> None:
    assert value_text(value) == text


# --- what layers and names say -----------------------------------------------------------------------------------

IMAGE, TOKENS, ROWS = Tensor((2, 32, 16, 16)), Tensor((2, 16, 32)), Tensor((2, 32))
NOTHING = Layers((), (), embeds=False)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(nn.init.ones_(nn.Linear(48, 1).weight))  # (1, 48)


@table(__file__, "inputs.md", "Layers of", globals())
def test_layers_of(
    make: Callable[[], nn.Module], channels: tuple[int, ...], ranks: tuple[int, ...], embeds: bool
) -> None:
    found = read_layers(make())
    assert (found.channels, found.ranks, found.embeds) == (channels, ranks, embeds)


@pytest.mark.parametrize(
    ("ranks", "name", "rows", "first"),
    [
        ((), "x", False, (2, 8, 16, 16)),
        ((3,), "x", False, (2, 16, 8)),
        ((4, 3), "hidden_states", False, (2, 16, 8)),
        ((3,), "img", False, (2, 8, 16, 16)),
        ((4,), "x", True, (2, 8)),
        ((3,), "tokens", True, (2, 8)),
    ],
)
def test_layouts(ranks: tuple[int, ...], name: str, rows: bool, first: tuple[int, ...]) -> None:
    found = [layout(8) for layout in layouts(Layers((32,), ranks, embeds=False), name, rows=rows)]
    assert found[0] == first
    assert len(set(found)) == len(found) == 10
    assert all(8 in shape for shape in found)


@table(__file__, "inputs.md", "Like main", globals())
def test_like_main(name: str, main: Tensor, loss: bool, expected: object) -> None:
    assert propose_like_main(name, main, loss=loss)[0] == expected


@pytest.mark.parametrize(
    ("name", "main", "loss", "further"),
    [
        ("target", IMAGE, True, [Tensor((2,), INDEX), Tensor((2, 16, 16), INDEX), Tensor((2,))]),
        ("mask", TOKENS, False, [Tensor((2, 16), MASK), Tensor((2, 16, 32), MASK)]),
        ("attn_mask", TOKENS, False, [Tensor((2, 1, 16, 16)), Tensor((16, 16), MASK)]),
        ("timestep", IMAGE, False, [Tensor((2,), INDEX)]),
        ("other", TOKENS, False, [Literal("None"), Literal("1"), Tensor((2, 16), INDEX)]),
    ],
)
def test_further_values(name: str, main: Tensor, loss: bool, further: list[object]) -> None:
    found = propose_like_main(name, main, loss=loss)
    assert [value for value in further if value not in found] == []


def test_meanings_can_be_evaluated(names: Any, load: Any) -> None:
    load("class A(nn.Module): pass")
    namespace = names()
    for _, value in inputs.MEANINGS:
        namespace.value(value.expression())


@pytest.mark.parametrize(
    ("name", "annotation", "layers", "expected"),
    [
        ("x", "", NOTHING, [Tensor((2, 6, 16, 16))]),
        ("x", "list[Tensor]", NOTHING, [pyramid(6, 3, 16), Tensor((2, 6, 16, 16))]),
        ("input_ids", "", NOTHING, [Tensor((2, 16), INDEX), Tensor((2,), INDEX), Tensor((2, 6, 16, 16))]),
    ],
)
def test_main_values(name: str, annotation: str, layers: Layers, expected: list[object]) -> None:
    assert list(main_values(name, annotation, (2, 6, 16, 16), 6, layers)) == expected


def test_the_main_input_of_an_embedding() -> None:
    layers = read_layers(nn.Sequential(nn.Embedding(5, 6)))
    assert next(main_values("x", "", (2, 16, 6), 6, layers)) == Tensor((2, 16), INDEX)
    assert next(main_values("x", "", (2, 6, 16, 16), 6, layers)) == Tensor((2, 6, 16, 16))


@pytest.mark.parametrize(
    ("arguments", "name", "loss"),
    [(["x", "target"], "A", True), (["x"], "DiceLoss", True), (["x"], "Criterion", True), (["x"], "Glossy", False)],
)
def test_is_loss(arguments: list[str], name: str, loss: bool) -> None:
    assert is_loss(arguments, name) == loss


@table(__file__, "inputs.md", "What annotations say", globals())
def test_what_annotations_say(annotation: str, shape: tuple[int, ...], expected: str | None) -> None:
    found = values_from_annotation(annotation, Tensor(shape))
    assert (found[0].expression() if found else None) == expected
