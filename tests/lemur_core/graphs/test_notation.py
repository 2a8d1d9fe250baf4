"""The notation of specs says every argument so that it comes back, also from a line with sorted keys."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.graphs.graph import Graph, Node, Ref, TensorType
from lemur_core.graphs.serialization import deserialize, load_graphs, restore, serialize, store
from lemur_core.graphs.sizes import Sized
from lemur_core.graphs.symbolic import (
    Size,
    evaluate_formula,
    evaluate_graph,
    find_formula,
    list_sizes,
    normalize_formula,
)

numbers = st.one_of(st.integers(), st.floats(allow_nan=False))
SIZES = {"B": (2.0, 3.0), "H": (7, 9), "U1": (5, 1)}
FORMULAS = ["B", "H // 2", "2 * H - 1", "-H % 5", "1 / H", "H ** -0.5", "(H - 1) // 2 * U1", "1 / (B * H) ** 0.5"]
literals = st.one_of(st.none(), st.booleans(), numbers, st.text(), st.sampled_from(["%3", "3×3", "×", "%1.1", "=H"]))
sizes = st.builds(Size, st.sampled_from(FORMULAS), st.one_of(st.integers(0, 9), st.floats(0, 1)))
refs = st.builds(Ref, st.integers(0, 9), st.integers(0, 3))
arguments = st.recursive(
    st.one_of(literals, refs, sizes, st.lists(st.one_of(numbers, sizes), max_size=4).map(tuple)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
types = st.builds(
    TensorType,
    st.sampled_from(["float32", "int64"]),
    st.lists(st.one_of(st.integers(0, 99), sizes), max_size=4).map(tuple),
)
nodes = st.builds(
    Node,
    st.sampled_from(["relu", "cat"]),
    st.dictionaries(st.text(min_size=1), arguments, max_size=4).map(lambda given: tuple(given.items())),
    st.lists(types, max_size=2).map(tuple),
    st.text(),
)
graphs = st.builds(
    Graph,
    st.lists(nodes, max_size=4).map(tuple),
    st.lists(refs, max_size=2).map(tuple),
    st.lists(st.tuples(refs, refs), max_size=2).map(tuple),
)


def exact(value: Any) -> Any:
    """With types, which `==` does not tell apart: 1 is 1.0 is True."""
    return [exact(item) for item in value] if isinstance(value, tuple) else (type(value), value)


def assert_same(graph: Graph, again: Graph) -> None:
    assert again == graph
    for one, other in zip(graph.nodes, again.nodes, strict=True):
        assert [exact(value) for _, value in one.arguments] == [exact(value) for _, value in other.arguments]
        assert one.scope == other.scope


@given(graphs)
def test_round_trip(graph: Graph) -> None:
    line = json.dumps(serialize(graph, SIZES), sort_keys=True, ensure_ascii=False)
    assert_same(graph, deserialize(json.loads(line), SIZES))


ordered = graphs.map(
    lambda graph: replace(
        graph,
        nodes=tuple(
            replace(node, arguments=tuple((n, _earlier(v, place)) for n, v in node.arguments))
            for place, node in enumerate(graph.nodes)
        ),
    )
)


def _earlier(value: Any, place: int) -> Any:
    """An argument that names only nodes before it."""
    if isinstance(value, Ref):
        return Ref(value.node % place, value.output) if place else None
    return tuple(_earlier(item, place) for item in value) if isinstance(value, tuple) else value


@given(ordered, ordered, st.data())
def test_train_mode_as_a_difference(one: Graph, other: Graph, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, len(one.nodes)))
    nodes = [*one.nodes[:kept], *(replace(n, arguments=()) for n in other.nodes)]
    trained = Graph(tuple(nodes), other.outputs, other.writes)
    stored = json.loads(json.dumps(store(Sized(one, trained, dict(SIZES))), sort_keys=True, ensure_ascii=False))
    found = restore(stored | {"train_error": None})
    assert found.trained is not None
    assert_same(one, found.evaluated)
    assert_same(trained, found.trained)
    assert load_graphs(stored | {"train_error": None}) == {
        "eval": evaluate_graph(one),
        "train": evaluate_graph(trained),
    }


# Formulas for sizes: each kind is found, and what is none of them is not.

HEIGHTS, WIDTHS = (17, 19, 22, 17, 17, 24), (33, 33, 33, 35, 38, 40)
ATOMS = {"H": HEIGHTS, "W": WIDTHS}


def test_a_quotient_of_multiples_is_no_remainder() -> None:
    """7 % 6, 14 % 6, 21 % 6 are 1, 2, 3, as well."""
    assert find_formula([1, 2, 3, 4], {"H": (7, 14, 21, 28)}) == "H // 7"
    assert list_sizes(normalize_formula("(H+1)//2")) == {"H"}


@pytest.mark.parametrize(
    "text",
    [
        *("H", "2 * H + 1", "48 - W", "(H - 1) // 2 + 1", "H // 4", "-H % 7", "H * W", "H * W * 3"),
        *("H * W // 1 * 4", "W * (H // 2)", "1 / (H * W)", "H ** -0.5"),
    ],
)
def test_a_formula_holds_at_sizes_that_it_was_not_made_from(text: str) -> None:
    seen = [evaluate_formula(text, {"H": height, "W": width}) for height, width in zip(HEIGHTS, WIDTHS, strict=True)]
    found = find_formula(seen, ATOMS)
    assert found is not None
    for height in range(15, 29):
        for width in (31, 36, 41):
            sizes = {"H": height, "W": width}
            assert evaluate_formula(found, sizes) == pytest.approx(evaluate_formula(text, sizes))


@pytest.mark.parametrize("values", [(1, 7, 2, 9, 4, 3), (17, 19, 22, 17, 18, 24)])
def test_no_formula_for_what_follows_no_size(values: tuple[int, ...]) -> None:
    assert find_formula(values, ATOMS) is None


@pytest.mark.parametrize("text", ["H.real", "__import__('os')", "H +", "H if W else 1", "Q + 1", "H // 0"])
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"H|Q|import"):
        evaluate_formula(text, {"H": 3, "W": 4})
