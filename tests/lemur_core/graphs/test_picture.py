"""Pictures of graphs: what is in them, that nothing overlaps, and that their bytes are always the same."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lemur_core.describe.picture import MAX_BOXES, Box, boxes, draw, place
from lemur_core.graphs.graph import LEAVES, Graph
from tests.builders.graphs import trace

ORANGE = "#d55e00"


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1, stride=1)
        self.act = nn.ReLU()
        self.b = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x))) + x


def graph_of(build: Callable[[], nn.Module]) -> Graph:
    return trace(build, lambda: [torch.rand(2, 4, 8, 8)])


def deep(blocks: int) -> Graph:
    return graph_of(lambda: nn.Sequential(*(Residual(4) for _ in range(blocks))))


def test_each_operation_has_a_box_that_tells_its_widths() -> None:
    found = boxes(deep(1))
    assert [(box.title, box.kind, box.reads) for box in found] == [
        ("input", "input", ()),
        ("convolution", "learned", (0,)),
        ("relu", "operation", (1,)),
        ("convolution", "learned", (2,)),
        ("add", "operation", (3, 0)),
        ("output", "output", (4,)),
    ]
    assert found[1].lines == ("0.a", "kernel 3×3, padding 1×1, weight 4×4×3×3", "bias 4", "2×4×8×8")


@pytest.mark.parametrize("blocks", [25, 26, 80])
def test_modules_are_folded_where_there_are_too_many(blocks: int) -> None:
    graph = deep(blocks)
    found = boxes(graph)
    assert (len(found) - 2 == 4 * blocks) == (4 * blocks <= MAX_BOXES)
    assert len(found) - 2 <= MAX_BOXES
    assert all(read < place for place, box in enumerate(found) for read in box.reads)
    if 4 * blocks > MAX_BOXES:
        assert [box.title for box in found[1:-1]] == [str(block) for block in range(blocks)]
        assert found[1].lines == ("2×convolution, relu, add", "2×4×8×8")


def test_operations_outside_of_modules_are_folded_in_turn() -> None:
    class Loop(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for number in range(250):
                x = x.sin() + number
            return x

    graph = graph_of(Loop)
    found = boxes(graph)
    assert sum(node.op not in LEAVES for node in graph.nodes) == 500
    assert len(found) - 2 == MAX_BOXES
    assert found[1].title == "5 operations"


def test_what_goes_past_is_drawn_in_another_colour(tmp_path: Path) -> None:
    assert draw(deep(2), tmp_path / "a.svg", "two blocks") == 10
    text = (tmp_path / "a.svg").read_text()
    ElementTree.fromstring(text)
    assert len(re.findall(rf'<path d="[^"]+" clip-path="[^"]+" style="fill: none; stroke: {ORANGE}', text)) == 2
    plain = graph_of(lambda: nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1)))
    draw(plain, tmp_path / "b.svg", "none")
    assert ORANGE not in (tmp_path / "b.svg").read_text()
    for label in ("convolution", "weight 4×4×1×1", "two blocks"):
        assert f"<!-- {label}" in text or label in text
    for name in ("a", "b"):
        draw(deep(3), tmp_path / f"{name}.svg", "three")
    one, other = ((tmp_path / f"{name}.svg").read_bytes() for name in ("a", "b"))
    assert one == other
    assert b"dc:date" not in one


@given(st.lists(st.tuples(st.sets(st.integers(1, 9), max_size=3), st.integers(10, 90)), min_size=1, max_size=14))
def test_no_box_lies_on_another_or_above_what_it_reads(drawn: list[tuple[set[int], int]]) -> None:
    found, sizes = [], [(float(width), width / 3) for _, width in drawn]
    for number, (steps, _) in enumerate(drawn):
        reads = tuple(number - step for step in sorted(steps) if step <= number)
        found.append(Box(str(number), (), reads, "input" if number == 0 else "operation"))
    x, y, detours = place(found, sizes)
    for one, other in itertools.combinations(range(len(found)), 2):
        apart = [abs(at[one] - at[other]) - (sizes[one][of] + sizes[other][of]) / 2 for of, at in enumerate((x, y))]
        assert max(apart) > 17 - 1e-6
    assert all(y[read] < y[number] for number, box in enumerate(found) for read in box.reads)
    for lane, *gaps in detours.values():
        assert all(lane > at + width / 2 for at, (width, _) in zip(x, sizes, strict=True))
        assert not any(
            at - height / 2 <= gap <= at + height / 2 for at, (_, height) in zip(y, sizes, strict=True) for gap in gaps
        )
