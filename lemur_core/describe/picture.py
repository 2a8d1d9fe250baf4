"""Draw a graph: operations from top to bottom, shapes in the boxes, what goes past an operation beside them."""

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lemur_core.files.atomic import atomic_file
from lemur_core.files.errors import UsageError
from lemur_core.files.markdown import make_visible
from lemur_core.graphs.graph import LEAVES, Graph, Node, reachable, refs_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito 2008, "Color Universal Design"
BLUE, ORANGE, INK, FAINT = "#0072B2", "#D55E00", "#222222", "#8A8A8A"

#: Maximum number of boxes with one operation each.
MAX_BOXES = 100

_SIZE, _SMALL = 8.0, 6.5  # points
_LINE = 10.5
_PAD, _GAP, _BETWEEN, _LANE = 8.0, 18.0, 26.0, 12.0  # around text, between boxes, between layers, per bypass
_MARGIN = 20.0
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
    save_figure(path, lambda figure: _draw(figure, shapes, title))
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


def place(
    boxes: Sequence[Box], sizes: Sequence[tuple[float, float]]
) -> tuple[list[float], list[float], dict[tuple[int, int], tuple[float, float, float]]]:
    """Return x and y of the centers of boxes, and the detour of each connection that goes past a layer.

    Each box lies below everything it reads, as near to the middle of it as its neighbors let it. A detour leads through
    the gap below the layer of the box that is read, down a lane beside all boxes, and through the gap above the other's
    layer: the x of its lane, and the y of both gaps.
    """
    ranks = _ranks(boxes)
    x, y, top = [0.0] * len(boxes), [0.0] * len(boxes), 0.0
    spans: list[tuple[float, float]] = []  # top and bottom of each layer
    for layer in range(max(ranks, default=-1) + 1):
        wanted = {
            index: fmean(x[read] for read in box.reads) if box.reads else 0.0
            for index, box in enumerate(boxes)
            if ranks[index] == layer
        }
        edge = float("-inf")
        for index in sorted(wanted, key=lambda index: (wanted[index], index)):
            half = sizes[index][0] / 2
            x[index] = max(wanted[index], edge + half)
            edge = x[index] + half + _GAP
        shift = fmean(wanted[index] - x[index] for index in wanted)
        height = max(sizes[index][1] for index in wanted)
        for index in wanted:
            x[index], y[index] = x[index] + shift, top + height / 2
        spans.append((top, top + height))
        top += height + _BETWEEN
    right = max((at + width / 2 for at, (width, _) in zip(x, sizes, strict=True)), default=0.0)
    detours: dict[tuple[int, int], tuple[float, float, float]] = {}
    taken: list[set[int]] = []  # the layers that are taken, of each lane
    past = ((ranks[target] - ranks[read], read, target) for target, box in enumerate(boxes) for read in box.reads)
    for length, read, target in sorted(past):
        if length > 1:
            span = set(range(ranks[read], ranks[target]))
            lane = next((lane for lane, layers in enumerate(taken) if not layers & span), len(taken))
            taken[lane:] = taken[lane:] or [set()]
            taken[lane] |= span
            off = 5 + lane % 5 * 3  # no two lines of a gap coincide
            detours[read, target] = (
                right + (lane + 1) * _LANE,
                spans[ranks[read]][1] + off,
                spans[ranks[target]][0] - off,
            )
    return x, y, detours


def _ranks(boxes: Sequence[Box]) -> list[int]:
    """Return the layer of each box; what does not depend on an input is just above its first use."""
    ranks: list[int] = []
    depends: list[bool] = []
    for box in boxes:
        ranks.append(1 + max((ranks[read] for read in box.reads), default=-1))
        depends.append(box.kind == "input" or any(depends[read] for read in box.reads))
    first_use = [len(boxes)] * len(boxes)
    for index, box in reversed(list(enumerate(boxes))):
        if not depends[index] and first_use[index] < len(boxes):
            ranks[index] = max(0, first_use[index] - 1)
        for read in box.reads:
            first_use[read] = min(first_use[read], ranks[index])
    return ranks


_COLOURS = {
    "input": ("#EEEEEE", FAINT),
    "output": ("#EEEEEE", FAINT),
    "operation": ("white", FAINT),
    "learned": ("#E3F0F8", BLUE),
    "module": ("#FBEBDD", FAINT),
}


def _draw(figure: "Figure", boxes: Sequence[Box], title: str) -> None:
    """Draw everything into a figure, one point per unit."""
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path as Outline

    sizes = [_measure_box(box) for box in boxes]
    x, y, detours = place(boxes, sizes)
    left = min((at - width / 2 for at, (width, _) in zip(x, sizes, strict=True)), default=0.0) - _MARGIN
    right = max((at + width / 2 for at, (width, _) in zip(x, sizes, strict=True)), default=0.0)
    right = (
        max([right, *(lane for lane, _, _ in detours.values()), left + _MARGIN + _measure(title, _SIZE + 2)]) + _MARGIN
    )
    bottom = max((at + height / 2 for at, (_, height) in zip(y, sizes, strict=True)), default=0.0) + _MARGIN
    top = -_MARGIN - 2 * _LINE
    figure.set_layout_engine("none")
    figure.set_size_inches((right - left) / 72, (bottom - top) / 72)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.axis("off")
    axes.text(left + _MARGIN, top + _MARGIN, title, fontsize=_SIZE + 2, va="center")
    for target, box in enumerate(boxes):
        for read in box.reads:
            start, end = y[read] + sizes[read][1] / 2, y[target] - sizes[target][1] / 2
            if detour := detours.get((read, target)):
                lane, below, above = detour
                corners = [(x[read], below), (lane, below), (lane, above), (x[target], above)]
                codes, color, width = [Outline.LINETO] * 5, ORANGE, 1.4
            else:
                corners = [(x[read], (start + end) / 2), (x[target], (start + end) / 2)]
                codes, color, width = [Outline.CURVE4] * 3, INK, 0.9
            path = Outline([(x[read], start), *corners, (x[target], end)], [Outline.MOVETO, *codes])
            axes.add_patch(PathPatch(path, fill=False, edgecolor=color, linewidth=width))
            axes.plot([x[target]], [end - 2], marker="v", markersize=4, linestyle="none", color=color)
        width, height = sizes[target]
        corner = (x[target] - width / 2, y[target] - height / 2)
        face, edge = _COLOURS[box.kind]
        style = "round,pad=0,rounding_size=3"
        axes.add_patch(FancyBboxPatch(corner, width, height, style, facecolor=face, edgecolor=edge, zorder=3))
        for line, (text, size) in enumerate(_lines(box)):
            at = corner[1] + _PAD + (line + 0.5) * _LINE
            axes.text(x[target], at, text, fontsize=size, color=INK, ha="center", va="center", zorder=4)


def _lines(box: Box) -> Iterator[tuple[str, float]]:
    """Yield the lines of a box, each with its size."""
    yield make_visible(box.title, _CHARACTERS), _SIZE
    for line in box.lines:
        yield make_visible(line, 2 * _CHARACTERS), _SMALL


def _measure_box(box: Box) -> tuple[float, float]:
    """Return width and height of a box in points."""
    lines = list(_lines(box))
    return max(_measure(text, size) for text, size in lines) + 2 * _PAD, len(lines) * _LINE + 2 * _PAD


def _measure(text: str, size: float) -> float:
    """Return the width of a line of text in points."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=size).get_extents().width) if text.strip() else 0.0


# --- figures ------------------------------------------------------------------------------------------------------

_DPI = 160  # sharp on finer screens at 8 inches and 800 pixels

_STYLE: dict[str, object] = {
    "font.family": ["DejaVu Sans"],
    "text.color": INK,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "lemur",  # otherwise the IDs in an SVG file are random
}


def save_figure(path: Path, draw: Callable[["Figure"], None]) -> None:
    """Draw one figure into a PNG file, or an SVG file if the name ends in `.svg`; create its folder if needed.

    The style does not depend on the user's Matplotlib settings; the file has no date, so equal figures are equal bytes.

    Args: path: replaced as a whole, or not at all. draw: called once with an empty figure.
    """
    import matplotlib  # imported here: slower than the rest of a report
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams  # its keys are typed as literals
        settings.update(_STYLE)
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # a name in a script that the font lacks
        figure = Figure(layout="constrained")
        draw(figure)
        with atomic_file(path) as part:
            # Without dates and versions, equal figures are equal bytes.
            if path.suffix == ".svg":
                figure.savefig(part, format="svg", metadata={"Date": None, "Creator": None})
            else:
                figure.savefig(part, format="png", dpi=_DPI, metadata={"Software": None})
