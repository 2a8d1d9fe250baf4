"""Graphs of several sizes come back from JSON as they were; formulas hold at sizes that they were not made from."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.graphs.formulas import Size, evaluate_formula, find_formula, list_sizes, normalize_formula
from lemur_core.graphs.graph import Graph, Node, Ref, TensorType
from lemur_core.graphs.sizes import Sized, evaluate_graph

integers = st.integers(-(2**63), 2**63 - 1)
numbers = st.one_of(integers, st.floats(allow_nan=False))
SIZES = {"B": (2.0, 3.0), "H": (7, 9), "U1": (5, 1)}
FORMULAS = ["B", "H // 2", "2 * H - 1", "-H % 5", "1 / H", "H ** -0.5", "(H - 1) // 2 * U1", "1 / (B * H) ** 0.5"]
texts = st.text().filter(lambda text: "\0" not in text)
literals = st.one_of(st.none(), st.booleans(), numbers, texts)
sizes = st.sampled_from(
    [Size(text, evaluate_formula(text, {name: values[0] for name, values in SIZES.items()})) for text in FORMULAS]
)


def draw_graph(data: st.DataObject) -> Graph:
    """A graph of which each node reads earlier ones."""
    nodes: list[Node] = []
    for place in range(data.draw(st.integers(1, 4))):
        refs = st.integers(0, place - 1).map(Ref) if place else st.none()
        arguments = st.recursive(
            st.one_of(literals, refs, sizes), lambda inner: st.lists(inner).map(tuple), max_leaves=6
        )
        given = data.draw(st.dictionaries(texts, arguments, max_size=3))
        shape = data.draw(st.lists(st.one_of(integers, sizes), max_size=4).map(tuple))
        nodes.append(Node("cat", tuple(given.items()), (TensorType("float32", shape),), data.draw(texts)))
    last = Ref(len(nodes) - 1)
    return Graph(tuple(nodes), (last,), ((Ref(0), last),))


def exact(value: Any) -> Any:
    """With types, which `==` does not tell apart: 1 is 1.0 is True."""
    return [exact(item) for item in value] if isinstance(value, tuple) else (type(value), value)


def assert_same(graph: Graph, again: Graph) -> None:
    assert again == graph
    for one, other in zip(graph.nodes, again.nodes, strict=True):
        assert [exact(value) for _, value in one.arguments] == [exact(value) for _, value in other.arguments]
        assert one.scope == other.scope


@given(st.data(), st.booleans())
def test_both_modes_come_back(data: st.DataObject, is_equal: bool) -> None:
    evaluated = draw_graph(data)
    trained = evaluated if is_equal else draw_graph(data)
    stored = json.loads(json.dumps(Sized(evaluated, trained, dict(SIZES)).to_json(), sort_keys=True))
    found = Sized.from_json(stored | {"train_error": None})
    assert found.trained is not None
    assert_same(evaluated, found.evaluated)
    assert_same(trained, found.trained)
    assert found.evaluate() == {"eval": evaluate_graph(evaluated), "train": evaluate_graph(trained)}
    assert found.fix("why").sizes == {}


@pytest.mark.parametrize(
    ("formula", "value"),
    [("H", 8), ("W", 7), ("H.real", 7), ("H +", 7), ("(" * 300, 7), ("-" * 1500 + "H", 7), ("H", "7")],
)
def test_a_formula_without_its_value_is_refused(formula: str, value: object) -> None:
    graph = Graph((Node("input", (), (TensorType("float32", (2,)),)),), (Ref(0),)).to_json()
    graph["nodes"][0][2] = [["float32", [{"formula": formula, "value": value}]]]
    for sizes in ({"H": 7}, None):
        with pytest.raises(ValueError, match="not a graph"):
            Graph.from_json(graph, sizes)


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
