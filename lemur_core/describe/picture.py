"""Draw a graph: operations from top to bottom, shapes in the boxes, and beside them what goes past an operation."""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UsageError
from lemur_core.files.markdown import make_visible
from lemur_core.graphs.graph import LEAVES, Graph, Node, reachable, refs_in

# Okabe and Ito 2008, "Color Universal Design"
BLUE, ORANGE, INK, FAINT = "#0072B2", "#D55E00", "#222222", "#8A8A8A"
_COLORS = {
    "input": ("#EEEEEE", FAINT),
    "output": ("#EEEEEE", FAINT),
    "operation": ("white", FAINT),
    "learned": ("#E3F0F8", BLUE),
    "module": ("#FBEBDD", FAINT),
}

#: Maximum number of boxes with one operation each.
MAX_BOXES = 100

_FONT = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_SIZE, _SMALL = 10.0, 8.0  # of a title and of other lines, in pixels
_WIDE = 0.62  # of a character, in sizes: each of these fonts has narrower ones
_LINE, _PAD, _GAP, _LANE, _MARGIN = 13.0, 8.0, 22.0, 10.0, 16.0
_CHARACTERS = 44
#: Default arguments, which are not shown.
_PLAIN: Mapping[str, int] = {"stride": 1, "dilation": 1, "groups": 1, "padding": 0, "output_padding": 0}


@dataclass(frozen=True, slots=True)
class Box:
    """One box: an operation, or all operations in one call of a module.

    `title` and `lines` are its text; `reads` the boxes that lead to it, by index; `kind` one of `input`, `output`,
    `operation`, `learned` (it has parameters) and `module`.
    """

    title: str
    lines: tuple[str, ...]
    reads: tuple[int, ...]
    kind: str


def check_picture(path: Path) -> None:
    """Check the name of a picture.

    Args: path: where the picture is to be written; it need not exist.
    Raises: UsageError unless it ends in `.svg`.
    """
    if path.suffix != ".svg":
        raise UsageError(f"{path}: pictures of graphs are SVG; give a name that ends in .svg")


def draw(graph: Graph, path: Path, title: str, limit: int = MAX_BOXES) -> int:
    """Draw a graph into an SVG file, with the same bytes for the same graph.

    Args: title: shown above the picture. limit: maximum number of boxes, not counting inputs and outputs.
    Returns: the number of boxes, including inputs and outputs.
    Raises: UsageError as `check_picture` does.
    """
    check_picture(path)
    drawn = boxes(graph, limit)
    write_text(path, _write_svg(drawn, title))
    return len(drawn)


# --- content ------------------------------------------------------------------------------------------------------


def boxes(graph: Graph, limit: int = MAX_BOXES) -> list[Box]:
    """Return the boxes of a graph, each after the boxes it reads.

    Above `limit` operations, consecutive operations of one module become one box, at the largest module depth that
    results in few enough boxes; if modules do not help, consecutive operations are merged as needed.

    Args: limit: the maximum number of boxes of operations; inputs and outputs have boxes of their own.
    Returns: inputs first, then operations, then outputs; parameters and constants have no box.
    """
    live = reachable(graph.nodes, graph.outputs)
    computing = [index for index in live if graph.nodes[index].op not in LEAVES]
    groups = _groups(graph, computing, limit)
    result: list[Box] = []
    box_of: dict[int, int] = {}
    inputs = [index for index in live if graph.nodes[index].op == "input"]
    for index in inputs:
        node = graph.nodes[index]
        name = node.scope.removeprefix("*") if len(inputs) > 1 or not node.scope.startswith("*") else ""
        box_of[index] = len(result)
        result.append(Box(f"input {name}".strip(), (_shapes(node),), (), "input"))
    for group in groups:
        inside = set(group)
        read = [ref.node for index in group for ref in graph.nodes[index].inputs]
        reads = dict.fromkeys(box_of[node] for node in read if node not in inside and node in box_of)
        result.append(_box(graph, group, tuple(reads)))
        box_of |= dict.fromkeys(group, len(result) - 1)
    for number, ref in enumerate(graph.outputs):
        name = "output" if len(graph.outputs) == 1 else f"output {number}"
        kind = graph.type_of(ref)
        result.append(Box(name, (_shape(kind.shape),), (box_of[ref.node],) if ref.node in box_of else (), "output"))
    return result


def _groups(graph: Graph, indices: Sequence[int], limit: int) -> list[list[int]]:
    if len(indices) <= limit:
        return [[index] for index in indices]
    scopes = [graph.nodes[index].scope.split(".") for index in indices]
    for depth in range(max(map(len, scopes)), 0, -1):
        groups: list[list[int]] = []
        before = [""]
        for index, scope in zip(indices, scopes, strict=True):
            if scope[:depth] == before != [""]:
                groups[-1].append(index)
            else:
                groups.append([index])
            before = scope[:depth]
        if len(groups) <= limit:
            return groups
    # Too many even by outermost modules, or there are none. Rounded up, to stay within the limit.
    each = -(-len(indices) // limit)
    return [list(indices[start : start + each]) for start in range(0, len(indices), each)]


def _shorten_op(node: Node) -> str:
    """Return the name of an operation as users of PyTorch know it: `max_pool2d` of `max_pool2d_with_indices`."""
    return node.op.strip("_").removeprefix("native_").removesuffix("_with_indices")


def _box(graph: Graph, group: Sequence[int], reads: tuple[int, ...]) -> Box:
    nodes = [graph.nodes[index] for index in group]
    read = (graph.nodes[ref.node] for node in nodes for ref in node.inputs)
    weights = [node for node in read if node.op == "parameter"]
    if len(nodes) == 1:
        (node,) = nodes
        shapes = [f"{weight.scope.rpartition('.')[2]} {_shape(weight.outputs[0].shape)}" for weight in weights]
        lines = [node.scope, *_wrap([*_attributes(node), *shapes]), _shapes(node)]
        kind = "learned" if weights else "operation"
        return Box(_shorten_op(node), tuple(line for line in lines if line), reads, kind)
    counted = Counter(map(_shorten_op, nodes))
    parts = [op if count == 1 else f"{count}×{op}" for op, count in counted.items()]
    levels = zip(*(node.scope.split(".") for node in nodes), strict=False)
    scope = ".".join(names[0] for names in itertools.takewhile(lambda names: len(set(names)) == 1, levels))
    return Box(scope or f"{len(nodes)} operations", (*_wrap(parts, 3), _shapes(nodes[-1])), reads, "module")


def _attributes(node: Node) -> list[str]:
    """Return the arguments of an operation other than values, without defaults."""
    attributes = []
    for name, value in node.arguments:
        values = value if isinstance(value, tuple) else (value,)
        plain = name in _PLAIN and all(item == _PLAIN[name] for item in values)
        if any(refs_in(value)) or plain or value is None or value is False or value in ("", ()) or name == "draw":
            continue
        if name != "shape":  # it is the shape of the result
            text = ", ".join(map(str, values)) if name in ("dim", "dims") else _value(value)
            attributes.append(name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {text}")
    return attributes


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return _shape(value) if all(isinstance(item, int) for item in value) else f"{len(value)} values"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "one number"


def _shapes(node: Node) -> str:
    return _shape(node.outputs[0].shape)


def _wrap(parts: Sequence[str], limit: int = 4) -> list[str]:
    """Join parts with commas into lines of limited length; beyond the limit, state how many more there are."""
    lines: list[str] = []
    for number, part in enumerate(parts):
        part = make_visible(part, _CHARACTERS)
        if lines and len(lines[-1]) + len(part) + 2 <= _CHARACTERS:
            lines[-1] += f", {part}"
        elif len(lines) == limit:
            lines[-1] += f", and {len(parts) - number} more"
            break
        else:
            lines.append(part)
    return lines


# --- drawing ------------------------------------------------------------------------------------------------------


def find_lanes(boxes: Sequence[Box]) -> dict[tuple[int, int], int]:
    """Return the lane beside the boxes, from 0, of each connection that goes past a box, the short ones innermost.

    A connection is the box that is read and the one that reads it; no two in one lane are beside the same box.
    """
    past = [(read, target) for target, box in enumerate(boxes) for read in box.reads if target - read > 1]
    lanes: dict[tuple[int, int], int] = {}
    taken: list[list[tuple[int, int]]] = []
    for read, target in sorted(past, key=lambda ends: (ends[1] - ends[0], ends)):
        free = (all(target <= first or read >= last for first, last in lane) for lane in taken)
        lane = next((number for number, is_free in enumerate(free) if is_free), len(taken))
        taken[lane:] = taken[lane:] or [[]]
        taken[lane].append((read, target))
        lanes[read, target] = lane
    return lanes


def _write_svg(boxes: Sequence[Box], title: str) -> str:
    lanes = find_lanes(boxes)
    heading = make_visible(title, 2 * _CHARACTERS)
    texts = [
        [(make_visible(box.title, _CHARACTERS), _SIZE)]
        + [(make_visible(line, 2 * _CHARACTERS), _SMALL) for line in box.lines]
        for box in boxes
    ]
    wide = max((_measure(text, size) for lines in texts for text, size in lines), default=0.0) + 2 * _PAD
    right = _MARGIN + wide
    middle = _MARGIN + wide / 2
    spans: list[tuple[float, float]] = []  # top and bottom of each box
    top = 2 * _MARGIN + _LINE
    for lines in texts:
        spans.append((top, top + _LINE * len(lines) + 2 * _PAD))
        top = spans[-1][1] + _GAP
    width = max(right + _LANE * (2 + max(lanes.values(), default=-1)), 2 * _MARGIN + _measure(heading, _SIZE))
    parts = [_text(heading, _SIZE, _MARGIN, _MARGIN + _LINE, "start")]
    for target, box in enumerate(boxes):
        start, end = spans[target]
        for read in box.reads:
            if (lane := lanes.get((read, target))) is None:
                line = f"M{middle:g} {spans[read][1]:g}V{start - 5:g}"
                tip, color = f"M{middle - 3.5:g} {start - 7:g}h7l-3.5 7z", INK
            else:
                beside, low, high = right + _LANE * (1 + lane), spans[read][1] - _PAD, start + _PAD
                line = f"M{right:g} {low:g}H{beside:g}V{high:g}H{right + 6:g}"
                tip, color = f"M{right + 7:g} {high - 3.5:g}v7l-7 -3.5z", ORANGE
            parts.append(f'<path d="{line}" fill="none" stroke="{color}"/><path d="{tip}" fill="{color}"/>')
        face, edge = _COLORS[box.kind]
        place = f'x="{_MARGIN:g}" y="{start:g}" width="{wide:g}" height="{end - start:g}"'
        parts.append(f'<rect {place} rx="4" fill="{face}" stroke="{edge}"/>')
        for number, (text, size) in enumerate(texts[target]):
            parts.append(_text(text, size, middle, start + _PAD + _LINE * (number + 0.75), "middle"))
    height = top - _GAP + _MARGIN
    extent = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" {extent} font-family="{_FONT}" fill="{INK}">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(text: str, size: float, x: float, y: float, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _measure(text: str, size: float) -> float:
    """Return the width of a line of text; characters of East Asia take two places."""
    return size * _WIDE * sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
