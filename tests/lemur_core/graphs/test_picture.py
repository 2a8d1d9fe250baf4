"""Pictures of graphs: what is in them, that no lines overlap, and that their bytes are always the same."""

import itertools
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lemur_core.describe.picture import MAX_BOXES, ORANGE, Box, boxes, draw, find_lanes
from lemur_core.graphs.graph import LEAVES, Graph
from tests.builders.graphs import trace


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
    assert boxes(graph_of(lambda: nn.LeakyReLU(0.5)))[1].lines == ("negative slope 0.5", "2×4×8×8")


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


def test_what_goes_past_is_drawn_in_another_color(tmp_path: Path) -> None:
    assert draw(deep(2), tmp_path / "a.svg", "two <blocks>") == 10
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    shown = [element.text for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert shown[:3] == ["two <blocks>", "input", "2×4×8×8"]
    assert {"convolution", "bias 4"} <= {*shown}
    assert text.count(f'stroke="{ORANGE}"') == 2
    plain = graph_of(lambda: nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1)))
    draw(plain, tmp_path / "b.svg", "none")
    assert ORANGE not in (tmp_path / "b.svg").read_text(encoding="utf-8")
    draw(deep(2), tmp_path / "b.svg", "two <blocks>")
    assert (tmp_path / "b.svg").read_text(encoding="utf-8") == text


@given(st.lists(st.sets(st.integers(1, 9), max_size=3), min_size=1, max_size=14))
def test_no_two_lines_in_a_lane_are_beside_one_box(drawn: list[set[int]]) -> None:
    found = []
    for number, steps in enumerate(drawn):
        reads = tuple(number - step for step in sorted(steps) if step <= number)
        found.append(Box(str(number), (), reads, "operation"))
    lanes = find_lanes(found)
    assert {*lanes} == {(read, box) for box in range(len(found)) for read in found[box].reads if box - read > 1}
    for (ends, lane), (others, other) in itertools.combinations(lanes.items(), 2):
        assert lane != other or ends[1] <= others[0] or others[1] <= ends[0]
