"""Draw a graph: operations from top to bottom, bypasses in another color, shapes in the boxes.

Layers and their order follow Sugiyama: each node lies below everything it reads, connections that cross layers get a
slot in each of them, layers are ordered by the mean position of their neighbors, and straight lines take priority.

Source: K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system structures", IEEE
Transactions on Systems, Man, and Cybernetics 11 (1981)
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lemur_core.files.errors import UsageError
from lemur_core.files.figures import BLUE, FAINT, INK, ORANGE, save_figure
from lemur_core.files.markdown import make_visible
from lemur_core.graphs.graph import LEAVES, Graph, Node, reachable, refs_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Maximum number of boxes with one operation each.
MAX_BOXES = 100

_SIZE, _SMALL = 8.0, 6.5  # points
_LINE = 10.5
_PAD, _GAP, _BETWEEN, _LANE = 8.0, 18.0, 26.0, 12.0  # around text, between boxes, between layers, per bypass
_MARGIN = 20.0
_SWEEPS = 12
_HEAVY = 16.0  # how much more straight lines between boxes weigh than bypasses
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
    shapes = boxes(graph, limit)
    save_figure(path, lambda figure: _Picture(shapes).draw(figure, title))
    return len(shapes)


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


# --- layout -------------------------------------------------------------------------------------------------------


class _Picture:
    """Boxes with their positions in points. Items are boxes, then the slots of bypasses in each layer."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        self._boxes = boxes
        self._sizes = [_measure_box(box) for box in boxes]
        rank = _ranks(boxes)
        self._above: list[list[int]] = [[] for _ in boxes]
        self._routes: list[list[int]] = []  # of each connection, the items from box to box
        layer_of = list(rank)
        for target, box in enumerate(boxes):
            for source in box.reads:
                route = [source]
                for layer in range(rank[source] + 1, rank[target]):
                    layer_of.append(layer)
                    self._above.append([route[-1]])
                    route.append(len(layer_of) - 1)
                self._above[target].append(route[-1])
                self._routes.append([*route, target])
        self._below: list[list[int]] = [[] for _ in layer_of]
        for item, sources in enumerate(self._above):
            for source in sources:
                self._below[source].append(item)
        self._layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
        for item, layer in enumerate(layer_of):
            self._layers[layer].append(item)
        self._order()
        self._x = self._columns()
        self._y, self._heights = self._rows(layer_of)

    def _order(self) -> None:
        """Sort each layer by the mean position of the connected items, sweeping down and up in turn."""
        position = {item: float(number) for layer in self._layers for number, item in enumerate(layer)}
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            near = self._above if down else self._below
            for layer in self._layers if down else reversed(self._layers):
                mean = {item: position[item] for item in layer}
                mean |= {item: sum(position[o] for o in near[item]) / len(near[item]) for item in layer if near[item]}
                layer.sort(key=lambda item: (mean[item], item >= len(self._boxes), position[item]))
                position |= {item: float(number) for number, item in enumerate(layer)}

    def _columns(self) -> list[float]:
        """Return the x center of each item: near its neighbors, without overlaps, boxes before bypasses."""
        x = [0.0] * len(self._above)
        for sweep in range(_SWEEPS + 1):
            down = sweep % 2 == 0
            near = self._above if down else self._below
            for layer in self._layers if down else reversed(self._layers):
                wanted, weights = [], []
                for item in layer:
                    others = [(x[other], self._weight(item, other)) for other in near[item]]
                    total = sum(weight for _, weight in others)
                    wanted.append(sum(at * weight for at, weight in others) / total if others else x[item])
                    weights.append(_HEAVY if item < len(self._boxes) else 1.0)
                steps = [(self._width(one) + self._width(other)) / 2 + _GAP for one, other in itertools.pairwise(layer)]
                for item, at in zip(layer, space_out(wanted, weights, steps), strict=True):
                    x[item] = at
        return x

    def _rows(self, layer_of: Sequence[int]) -> tuple[list[float], list[float]]:
        """Return the y center of each item from the top, and its height: for bypasses that of the layer."""
        middles, heights, at = [], [], 0.0
        for layer in self._layers:
            heights.append(max((self._sizes[item][1] for item in layer if item < len(self._boxes)), default=0.0))
            middles.append(at + heights[-1] / 2)
            at += heights[-1] + _BETWEEN
        own = [height for _, height in self._sizes]
        return [middles[layer] for layer in layer_of], own + [heights[layer] for layer in layer_of[len(own) :]]

    def _weight(self, *items: int) -> float:
        return _HEAVY if all(item < len(self._boxes) for item in items) else 1.0

    def _width(self, item: int) -> float:
        return self._sizes[item][0] if item < len(self._boxes) else _LANE

    def draw(self, figure: "Figure", title: str) -> None:
        """Draw everything into a figure, one point per unit."""
        from matplotlib.patches import FancyBboxPatch, PathPatch

        left = min((x - self._width(item) / 2 for item, x in enumerate(self._x)), default=0.0) - _MARGIN
        right = max((x + self._width(item) / 2 for item, x in enumerate(self._x)), default=0.0) + _MARGIN
        right = max(right, left + 2 * _MARGIN + _measure(title, _SIZE + 2))
        bottom = max((y + self._sizes[box][1] / 2 for box, y in enumerate(self._y[: len(self._boxes)])), default=0.0)
        top, bottom = -_MARGIN - 2 * _LINE, bottom + _MARGIN
        figure.set_layout_engine("none")
        figure.set_size_inches((right - left) / 72, (bottom - top) / 72)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_xlim(left, right)
        axes.set_ylim(bottom, top)
        axes.axis("off")
        axes.text(left + _MARGIN, top + _MARGIN, title, fontsize=_SIZE + 2, va="center")
        for route in self._routes:
            past = len(route) > 2
            color, width = (ORANGE, 1.4) if past else (INK, 0.9)
            axes.add_patch(PathPatch(self._path(route), fill=False, edgecolor=color, linewidth=width))
            x, y = self._x[route[-1]], self._y[route[-1]] - self._sizes[route[-1]][1] / 2
            axes.plot([x], [y - 2], marker="v", markersize=4, linestyle="none", color=color)
        for number, box in enumerate(self._boxes):
            width, height = self._sizes[number]
            x, y = self._x[number], self._y[number]
            face, edge = _COLOURS[box.kind]
            corner = (x - width / 2, y - height / 2)
            style = "round,pad=0,rounding_size=3"
            axes.add_patch(FancyBboxPatch(corner, width, height, style, facecolor=face, edgecolor=edge, zorder=3))
            for line, (text, size, colour) in enumerate(_lines(box)):
                at = y - height / 2 + _PAD + (line + 0.5) * _LINE
                axes.text(x, at, text, fontsize=size, color=colour, ha="center", va="center", zorder=4)

    def _path(self, route: Sequence[int]) -> Any:
        """Return a path from the lower edge of a box to the upper edge of another, vertical along bypassed boxes."""
        from matplotlib.path import Path as Outline

        points: list[tuple[float, float]] = []
        for item in route:
            x, y, half = self._x[item], self._y[item], self._heights[item] / 2
            points += [(x, y - half), (x, y + half)]
        points = points[1:-1]
        codes, corners = [Outline.MOVETO], [points[0]]
        for index, (one, other) in enumerate(itertools.pairwise(points)):
            if index % 2:  # along an item
                corners.append(other)
                codes.append(Outline.LINETO)
            else:  # between two layers
                middle = (one[1] + other[1]) / 2
                corners += [(one[0], middle), (other[0], middle), other]
                codes += [Outline.CURVE4] * 3
        return Outline(corners, codes)


_COLOURS = {
    "input": ("#EEEEEE", FAINT),
    "output": ("#EEEEEE", FAINT),
    "operation": ("white", FAINT),
    "learned": ("#E3F0F8", BLUE),
    "module": ("#FBEBDD", FAINT),
}


def _ranks(boxes: Sequence[Box]) -> list[int]:
    """Return the layer of each box: below everything it reads; boxes without an input, just above their first use."""
    import networkx as nx  # type: ignore[import-untyped]  # 0.2 s, for pictures alone

    edges = nx.DiGraph()
    edges.add_nodes_from(range(len(boxes)))
    edges.add_edges_from((source, target) for target, box in enumerate(boxes) for source in box.reads)
    rank = {box: layer for layer, generation in enumerate(nx.topological_generations(edges)) for box in generation}
    inputs = {number for number, box in enumerate(boxes) if box.kind == "input"}
    reached = inputs.union(*(nx.descendants(edges, box) for box in inputs))
    for box in reversed(list(nx.topological_sort(edges))):
        users = list(edges.successors(box))
        if box not in reached and users:
            rank[box] = min(rank[user] for user in users) - 1
    return [rank[box] for box in range(len(boxes))]


def space_out(wanted: Sequence[float], weights: Sequence[float], steps: Sequence[float]) -> list[float]:
    """Return ordered positions at least `steps` apart, with the least weighted squared distance to the wanted ones.

    Source: pool adjacent violators (Ayer et al. 1955)
    """
    offsets = list(itertools.accumulate(steps, initial=0.0))
    pools: list[tuple[float, float, int]] = []  # mean, weight, items
    for at, weight, offset in zip(wanted, weights, offsets, strict=True):
        pool = (at - offset, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, heavy, items = pools.pop()
            total = heavy + pool[1]
            pool = ((mean * heavy + pool[0] * pool[1]) / total, total, items + pool[2])
        pools.append(pool)
    means = [mean for mean, _, items in pools for _ in range(items)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _lines(box: Box) -> Iterator[tuple[str, float, str]]:
    """Yield the lines of a box, each with its size and color."""
    yield make_visible(box.title, _CHARACTERS), _SIZE, INK
    for line in box.lines:
        yield make_visible(line, 2 * _CHARACTERS), _SMALL, INK


def _measure_box(box: Box) -> tuple[float, float]:
    """Return width and height of a box in points."""
    lines = list(_lines(box))
    return max(_measure(text, size) for text, size, _ in lines) + 2 * _PAD, len(lines) * _LINE + 2 * _PAD


def _measure(text: str, size: float) -> float:
    """Return the width of a line of text in points."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=size).get_extents().width) if text.strip() else 0.0
