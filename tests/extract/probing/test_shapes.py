"""What layers, names and documented ranks say about inputs."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from extract.probing import shapes
from extract.probing.shapes import (
    LNC,
    NC,
    NCHW,
    NCTHW,
    NLC,
    Layers,
    fixed,
    is_graph,
    is_loss,
    layouts,
    like_main,
    look_at,
    main_values,
    mapping_of,
    orders,
    pyramid,
    required,
    with_value,
)
from extract.probing.tensors import INDEX, MASK, Items, Literal, Tensor

IMAGE, TOKENS, ROWS = Tensor((2, 32, 16, 16)), Tensor((2, 16, 32)), Tensor((2, 32))
NOTHING = Layers((), (), embeds=False)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(nn.init.ones_(nn.Linear(48, 1).weight))  # (1, 48)


@pytest.mark.parametrize(
    ("make", "channels", "ranks", "embeds"),
    [
        (lambda: nn.Conv2d(3, 8, 1), (3, 8), (4,), False),
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)), (3, 8), (4,), False),
        (lambda: nn.Conv1d(6, 6, 3), (6, 3), (3,), False),
        (lambda: nn.Sequential(nn.Conv3d(5, 6, 1)), (5,), (5,), False),
        (lambda: nn.Sequential(nn.Linear(7, 2), nn.Linear(2, 9)), (7, 2), (3,), False),
        (lambda: nn.Sequential(nn.LayerNorm(24)), (24,), (3,), False),
        (lambda: nn.Sequential(nn.LayerNorm((4, 24))), (), (), False),
        (lambda: nn.Sequential(nn.GroupNorm(2, 12)), (12,), (4,), False),
        (lambda: nn.Sequential(nn.LSTM(10, 20)), (10,), (3,), False),
        (lambda: nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 6)), (6,), (3,), True),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Embedding(5, 6)), (6,), (3,), False),
        (lambda: nn.Sequential(nn.LazyConv2d(4, 1)), (), (4,), False),
        (lambda: nn.LazyLinear(4), (), (3,), False),
        (lambda: nn.MultiheadAttention(16, 4), (16, 48), (3,), False),
        (Scaled, (48,), (), False),
        (nn.ReLU, (), (), False),
    ],
)
def test_look_at(
    make: Callable[[], nn.Module], channels: tuple[int, ...], ranks: tuple[int, ...], embeds: bool
) -> None:
    found = look_at(make())
    assert (found.channels, found.ranks, found.embeds) == (channels, ranks, embeds)


@pytest.mark.parametrize(
    ("ranks", "documented", "name", "first"),
    [
        ((), [], "x", NCHW),
        ((3,), [], "x", NLC),
        ((4, 3), [], "hidden_states", NLC),
        ((3,), [], "img", NCHW),
        ((4,), [5], "img", NCTHW),
        ((4,), [2], "x", NC),
        ((3,), [2], "tokens", NC),
    ],
)
def test_orders(ranks: tuple[int, ...], documented: list[int], name: str, first: int) -> None:
    found = orders(Layers((32,), ranks, embeds=False), documented, name)
    assert found[0] == first
    assert sorted(found) == sorted(layouts(8))


def test_layouts_have_the_channels_where_their_names_say() -> None:
    found = layouts(40)
    assert found[NCHW] == (2, 40, 16, 16)
    assert found[LNC] == (16, 2, 40)
    assert all(40 in shape for shape in found.values())
    for rank, kinds in shapes._OF_RANK.items():
        assert {len(found[kind]) for kind in kinds} == {rank}


@pytest.mark.parametrize(
    ("name", "main", "loss", "expected"),
    [
        ("skip", IMAGE, False, IMAGE),
        ("context", TOKENS, False, TOKENS),
        ("key", TOKENS, False, TOKENS),
        ("memory", TOKENS, False, TOKENS),
        ("h", TOKENS, False, Literal("4")),
        ("H", TOKENS, False, Literal("4")),
        ("hw_shape", TOKENS, False, Literal("(4, 4)")),
        ("edge_index", ROWS, False, Tensor((2, 16), INDEX, 8)),
        ("attention_mask", TOKENS, False, Literal("None")),
        ("mask", TOKENS, False, Literal("None")),
        ("position_embeddings", TOKENS, False, Items((Tensor((1, 16, 8)),) * 2, is_tuple=True)),
        ("cos", TOKENS, False, Tensor((1, 16, 8))),
        ("position_ids", TOKENS, False, Tensor((2, 16), INDEX)),
        ("timestep", IMAGE, False, Tensor((2, 16), INDEX)),
        ("target", IMAGE, True, IMAGE),
        ("target", IMAGE, False, IMAGE),
        ("mode", ROWS, False, Literal("'tensor'")),
        ("mode", ROWS, True, ROWS),
        ("feats", IMAGE, False, Items((IMAGE, IMAGE))),
        ("output_attentions", TOKENS, False, Literal("False")),
    ],
)
def test_like_main(name: str, main: Tensor, loss: bool, expected: object) -> None:
    assert like_main(name, main, loss=loss)[0] == expected


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
    found = like_main(name, main, loss=loss)
    assert [value for value in further if value not in found] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("return_attention", "False"),
        ("scale_factor", "1.0"),
        ("layer_idx", "0"),
        ("dtype", "torch.float32"),
        ("batch_size", "2"),
        ("tgt_len", "16"),
        ("x", None),
        ("hidden_states", None),
        ("shape_like", None),
    ],
)
def test_fixed(name: str, text: str | None) -> None:
    value = fixed(name)
    assert (value.expression() if value is not None else None) == text


def test_fixed_values_can_be_evaluated(names: Any, load: Any) -> None:
    load("class A(nn.Module): pass")
    namespace = names()
    for _, value in shapes._FIXED:
        namespace.value(value.expression())


@pytest.mark.parametrize(
    ("name", "annotation", "layers", "expected"),
    [
        ("x", "", NOTHING, [Tensor((2, 6, 16, 16))]),
        ("feats", "", NOTHING, [pyramid(6, 3, 16), Tensor((2, 6, 16, 16))]),
        ("x", "list[Tensor]", NOTHING, [pyramid(6, 3, 16), Tensor((2, 6, 16, 16))]),
        ("x", "Tuple[Tensor, ...]", NOTHING, [pyramid(6, 3, 16), Tensor((2, 6, 16, 16))]),
        ("input_ids", "", NOTHING, [Tensor((2, 16), INDEX), Tensor((2,), INDEX), Tensor((2, 6, 16, 16))]),
        ("pos", "", NOTHING, [Tensor((8, 3)), Tensor((2, 6, 16, 16))]),
        ("query", "", NOTHING, [Tensor((2, 6, 16, 16))]),
    ],
)
def test_main_values(name: str, annotation: str, layers: Layers, expected: list[object]) -> None:
    assert list(main_values(name, annotation, NCHW, 6, layers)) == expected


def test_the_main_input_of_an_embedding() -> None:
    layers = look_at(nn.Sequential(nn.Embedding(5, 6)))
    assert next(main_values("x", "", NLC, 6, layers)) == Tensor((2, 16), INDEX)
    assert next(main_values("x", "", NCHW, 6, layers)) == Tensor((2, 6, 16, 16))


def test_pyramid() -> None:
    assert [t.shape for t in pyramid(4, 3).values if isinstance(t, Tensor)] == [
        (2, 4, 32, 32),
        (2, 4, 16, 16),
        (2, 4, 8, 8),
    ]
    assert [t.shape[1:] for t in pyramid((8, 16), 9, 1).values if isinstance(t, Tensor)] == [(8, 1, 1), (16, 1, 1)]


@pytest.mark.parametrize(
    ("arguments", "graph"), [(["x", "edge_index"], True), (["x", "batch"], True), (["x", "y"], False)]
)
def test_is_graph(arguments: list[str], graph: bool) -> None:
    assert is_graph(arguments) == graph


@pytest.mark.parametrize(
    ("arguments", "name", "loss"),
    [(["x", "target"], "A", True), (["x"], "DiceLoss", True), (["x"], "Criterion", True), (["x"], "Glossy", False)],
)
def test_is_loss(arguments: list[str], name: str, loss: bool) -> None:
    assert is_loss(arguments, name) == loss


def test_required() -> None:
    def plain(x, y, z=1, *more, k, **rest):  # type: ignore[no-untyped-def]
        return None

    def open_to_all(*inputs, flag=False):  # type: ignore[no-untyped-def]
        return None

    def given(x=None):  # type: ignore[no-untyped-def]
        return None

    assert required(inspect.signature(plain).parameters) == ["x", "y", "k"]
    assert required(inspect.signature(open_to_all).parameters) == ["*inputs"]
    assert required(inspect.signature(given).parameters) == []


def test_with_value() -> None:
    inputs = (("x", IMAGE), ("y", ROWS))
    assert with_value(inputs, "x", TOKENS) == (("x", TOKENS), ("y", ROWS))
    assert with_value(inputs, "z", TOKENS) == (*inputs, ("z", TOKENS))
    assert mapping_of(ROWS, ["a"]).expression() == "{'a': torch.randn((2, 32))}"
