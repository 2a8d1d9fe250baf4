"""The notation of specs says every argument so that it comes back, also from a line with sorted keys."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lemur_core.graphs.graph import Graph, Node, Ref, TensorType
from lemur_core.graphs.notation import from_notation, to_notation

numbers = st.one_of(st.integers(), st.floats(allow_nan=False))
literals = st.one_of(st.none(), st.booleans(), numbers, st.text(), st.sampled_from(["%3", "3×3", "×", "%1.1"]))
refs = st.builds(Ref, st.integers(0, 9), st.integers(0, 3))
arguments = st.recursive(
    st.one_of(literals, refs, st.lists(numbers, max_size=4).map(tuple)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
types = st.builds(
    TensorType, st.sampled_from(["float32", "int64"]), st.lists(st.integers(0, 99), max_size=4).map(tuple)
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


@given(graphs)
def test_round_trip(graph: Graph) -> None:
    line = json.dumps(to_notation(graph), sort_keys=True, ensure_ascii=False)
    again = from_notation(json.loads(line))
    assert again == graph
    for one, other in zip(graph.nodes, again.nodes, strict=True):
        assert [exact(value) for _, value in one.arguments] == [exact(value) for _, value in other.arguments]
        assert one.scope == other.scope
