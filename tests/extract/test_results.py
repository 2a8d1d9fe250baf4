"""The counts of an extraction: they add up, and the interval is Wilson's."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.model.results import choose, count_reached, count_rows, count_targets, wilson
from manifests.records import LEVELS, Block

NAMES = ("Attention", "Scale", "Block")
SOURCES = ("alpha@1.0", "beta@2.0")


def row(name: str = "Scale", source: str = "alpha@1.0", level: str = "executed", **changes: Any) -> Block:
    qualname = f"pkg.{name}"
    made = {"block": f"{source}::{qualname}", "name": name, "qualname": qualname, "source": source, "category": "Other"}
    absent = dict.fromkeys(("graph", "graph_widths", "error_kind", "fidelity", "lean_lines", "lean_error"))
    return Block.model_construct(**made | absent | {"level": level, "n_lines": 10, "license": "MIT"} | changes)


rows = st.lists(
    st.builds(
        row,
        name=st.sampled_from(NAMES),
        source=st.sampled_from(SOURCES),
        level=st.sampled_from(LEVELS),
        error_kind=st.sampled_from([None, "native_op", "timeout"]),
        fidelity=st.sampled_from([None, "match", "mismatch"]),
        n_lines=st.one_of(st.none(), st.integers(0, 99)),
        category=st.sampled_from(["Other", "Loss"]),
    ),
    max_size=12,
)


@given(rows)
def test_counts_add_up(rows: list[Block]) -> None:
    counts = count_rows(rows)
    assert counts["blocks"] == sum(counts["levels"].values()) == counts["reached"]["discovered"] == len(rows)
    for group in ("sources", "categories"):
        assert sum(sum(levels.values()) for levels in counts[group].values()) == len(rows)
        for level in LEVELS:
            assert sum(levels.get(level, 0) for levels in counts[group].values()) == counts["levels"][level]
    assert sum(counts["failures"].values()) == sum(item.error_kind is not None for item in rows)
    assert sum(counts["fidelity"].values()) == sum(item.fidelity is not None for item in rows)
    assert counts["lines"] == sum(item.n_lines or 0 for item in rows)
    ladder = list(counts["reached"].values())
    assert ladder == sorted(ladder, reverse=True)
    assert list(counts["sources"]) == list(dict.fromkeys(item.source for item in rows))
    for group in ("categories", "failures"):  # by size, then by name
        sizes = {name: sum(n.values()) if isinstance(n, dict) else n for name, n in counts[group].items()}
        assert list(sizes) == sorted(sizes, key=lambda name: (-sizes[name], name))
    assert list(count_reached({"compiled": 2, "executed": 3}).values()) == [5, 5, 5, 5, 3, 0, 0, 0]


def test_a_name_chooses_the_first_block_that_has_it() -> None:
    first, second = row(source="alpha@1.0", level="compiled"), row(source="beta@2.0")
    other = row("Other", qualname="pkg.more.Other", block="beta@2.0::pkg.more.Other", source="beta@2.0")
    chosen = choose([first, second, other])
    assert chosen["Scale"] is chosen["pkg.Scale"] is first
    assert chosen["beta@2.0::pkg.Scale"] is second
    assert chosen["pkg.more.Other"] is chosen["Other"] is other
    bare, qualified = row("Scale", qualname="a.Scale"), row("Other", qualname="Scale")
    assert choose([bare, qualified])["Scale"] is qualified


def test_targets() -> None:
    rows = [row(level="compiled"), row(source="beta@2.0"), row("Attention")]
    found = count_targets(rows, ["Scale", "Attention", "Gone", "Scale", "beta@2.0::pkg.Scale"])
    assert (found["names"], found["found"], found["missing"]) == (4, 3, ["Gone"])
    assert found["reached"]["compiled"] == 3
    assert found["reached"]["executed"] == 2
    assert count_rows(rows, ["Gone"])["targets"]["found"] == 0
    assert "targets" not in count_rows(rows)


def test_the_interval_of_nothing_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 7)[0] == 0.0
    assert wilson(7, 7)[1] == 1.0
    assert wilson(6, 10) == pytest.approx((0.3127, 0.8318), abs=1e-4)
