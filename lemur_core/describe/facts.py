"""Facts of a computation, read from its canonical graph: one line an operation, and the motifs that structure proves.

    inputs x N×512×H×W
    (1) mean of x; dim 2×3, keepdim -> N×512×1×1
    (2) convolution of (1), weight learned 128×512×1×1, bias learned 128; kernel 1×1 -> N×128×1×1
    (3) relu of (2) -> N×128×1×1
    (4) convolution of (3), weight learned 512×128×1×1, bias learned 512; kernel 1×1 -> N×512×1×1
    (5) sigmoid of (4) -> N×512×1×1
    (6) mul of x, (5) -> N×512×H×W
    returns (6)

An operand is the number of an operation, the name of an argument, a number, `learned` (a parameter that is trained; one
that an earlier operation reads `as in (1)`), `fixed` (what the constructor made: a buffer, a frozen parameter, another
tensor), or `given` (a tensor that no operation computed: written in the code, or from outside PyTorch). Sizes that vary
with the input are letters; equal letters were equal in all runs, and a setting without a letter of its own `varies`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple

from lemur_core.graphs.formulas import Size
from lemur_core.graphs.graph import CONSTRUCTOR, LEAVES, Argument, Graph, Node, Ref

#: The letters of the sizes that vary in one shape, without that of its first dimension, by how many they are.
_LETTERS = {1: "L", 2: "HW", 3: "DHW"}
#: Settings that the shape of the result states.
_STATED = frozenset({"shape", "size", "draw"})
#: Flags that change nothing unless they are set; of others the opposite is stated: `not largest`.
_UNSET_FLAGS = frozenset(
    "transposed training train keepdim half_to_float ceil_mode scale_grad_by_freq sparse sparse_grad is_causal"  # noqa: SIM905
    " enable_gqa bidirectional cudnn_enabled descending accumulate stable".split()
)
#: Settings that change nothing, by operation or of all.
_NEUTRAL = {
    "convolution": {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "output_padding": 0},
    "embedding": {"padding_idx": -1},
}
_REDUCTIONS = ("none", "mean", "sum")
#: Operations that move elements, and compute none.
MOVES = frozenset({"reshape", "expand", "permute", "cast", "stop_gradient", "slice", "flip", "roll"})
_BOUNDED = frozenset({"sigmoid", "hardsigmoid", "_softmax"})
_POOLS = ("max_pool", "avg_pool", "_adaptive_avg_pool", "adaptive_max_pool", "fractional_max_pool")
_UPSAMPLES = ("upsample_", "pixel_shuffle")
#: Layers that define which axis of their input is that of the channels.
_FIRST, _LAST = (
    frozenset({"convolution", "batch_norm", "instance_norm", "group_norm"}),
    frozenset({"linear", "layer_norm"}),
)
_NORMS = frozenset({"batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm"})
_RECURRENT = frozenset(f"{name}{end}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for end in ("", "_cell"))
#: Operations that compute each element of their result from the elements at its place.
_ELEMENTWISE = frozenset("mul div add sub masked_fill where clamp tanh dropout cast stop_gradient".split())  # noqa: SIM905


class Motif(NamedTuple):
    """A part of a graph whose structure proves what it is. Args: operations: their numbers. facts: further ones."""

    kind: str
    operations: tuple[int, ...]
    facts: Mapping[str, bool] = {}


@dataclass(frozen=True)
class Facts:
    """The facts of one graph.

    Args:
        graph: canonical; at all sizes that it was recorded at.
        returns: the structure of what forward returns, from `extract.proofs.visit_guest`; () if it is not known.
        alone: what other runs may differ in: "sizes" if none was varied, "branches" if Python read values.
    """

    graph: Graph
    returns: Any = ()
    alone: tuple[str, ...] = ()

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The number of each operation of forward, from 1, by the index of its node."""
        nodes = enumerate(self.graph.nodes)
        operations = (index for index, node in nodes if node.op not in LEAVES and node.scope != CONSTRUCTOR)
        return {index: number for number, index in enumerate(operations, 1)}

    @cached_property
    def live(self) -> frozenset[int]:
        """The nodes that depend on an input, and the inputs."""
        live: set[int] = set()
        for index, node in enumerate(self.graph.nodes):
            if node.op == "input" or any(ref.node in live for ref in node.inputs):
                live.add(index)
        return frozenset(live)

    @cached_property
    def learned(self) -> frozenset[int]:
        """The nodes that depend on a parameter, and on no input."""
        learned: set[int] = set()
        for index, node in enumerate(self.graph.nodes):
            if node.op == "parameter" or (index not in self.live and any(ref.node in learned for ref in node.inputs)):
                learned.add(index)
        return frozenset(learned)

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """The nodes that read each node."""
        readers: dict[int, list[int]] = {}
        for index, node in enumerate(self.graph.nodes):
            for ref in dict.fromkeys(node.inputs):
                readers.setdefault(ref.node, []).append(index)
        return readers

    @cached_property
    def backward(self) -> frozenset[int]:
        """The operations that only the gradients of custom backwards need."""
        forward = {ref.node for ref in self.graph.results}
        for index in range(len(self.graph.nodes) - 1, -1, -1):
            if index in forward:
                node = self.graph.nodes[index]
                forward.update(
                    [node.get("input").node] if node.op == "custom_gradient" else [r.node for r in node.inputs]
                )
        return frozenset(self.numbers.keys() - forward)

    # -- lines -----------------------------------------------------------------------------------------------------

    @cached_property
    def _letters(self) -> dict[str, str]:
        """The letter of each size that varies, by its formula."""
        letters: dict[str, str] = {}
        for node in self.graph.nodes:
            for kind in node.outputs:
                further = [size for size in kind.shape[1:] if isinstance(size, Size)]
                names = ["N", *_LETTERS.get(len(further), "L" * len(further))]
                for size, name in zip([*kind.shape[:1], *further], names, strict=False):
                    if isinstance(size, Size) and size.text not in letters:
                        count = sum(other.rstrip("0123456789") == name for other in letters.values())
                        letters[size.text] = f"{name}{count + 1 if count else ''}"
        return letters

    def list_operations(self) -> list[str]:
        """Return a line for the inputs, one for each operation, and one for what is returned."""
        lines = []
        nodes = self.graph.nodes
        inputs = [Ref(index) for index, node in enumerate(nodes) if node.op == "input"]
        named = ", ".join(f"{self._operand(ref)} {self._type(ref)}" for ref in inputs)
        alone = f"of this run alone: {', '.join(self.alone)}" if self.alone else ""
        if inputs or alone:
            lines.append("; ".join(filter(None, [named and f"inputs {named}", alone])))
        for index, number in self.numbers.items():
            node = nodes[index]
            operands, settings = ", ".join(self._operands(index, node)), ", ".join(self._settings(node))
            gives = ", ".join(self._type(Ref(index, output)) for output in range(len(node.outputs)))
            text = f"{node.op.strip('_')}{f' of {operands}' if operands else ''}{f'; {settings}' if settings else ''}"
            lines.append(f"({number}) {'in backward: ' if index in self.backward else ''}{text} -> {gives}")
        return [*lines, f"returns {self._list_returned()}"]

    def _list_returned(self) -> str:
        """Return what forward returns: operations, and what is no tensor."""
        operands = list(map(self._operand, self.graph.outputs))
        if self.returns == () or count_tensors(self.returns) != len(operands):
            return ", ".join(operands) or "nothing" if self.returns == () else f"an object with {', '.join(operands)}"
        waiting = iter(operands)

        def write(value: Any) -> str:
            if isinstance(value, dict):
                return ", ".join(f"{name}: {write(item)}" for name, item in value["items"])
            if isinstance(value, list):
                return f"[{', '.join(map(write, value))}]"
            return next(waiting) if value == "tensor" else "no tensor"

        return ", ".join(map(write, self.returns)) if isinstance(self.returns, list) else write(self.returns)

    def _operands(self, index: int, node: Node) -> Iterator[str]:
        """Yield the values that an operation reads, with the names of their arguments but for the first ones."""
        for name, value in node.arguments:
            refs = [item for item in _flat(value) if isinstance(item, Ref)]
            if name in ("input", "other") and not refs:
                yield self._literal(value)
            for place, ref in enumerate(refs):
                named = name not in ("input", "other", "tensors", "mask") and not place and len(node.arguments) > 1
                text = f"{name} {self._operand(ref)}" if named else self._operand(ref)
                readers = self.readers[ref.node] if self.graph.nodes[ref.node].op == "parameter" else ()
                first = next((one for one in readers if one in self.numbers), index)
                yield f"{text} as in ({self.numbers[first]})" if first < index else text

    def _operand(self, ref: Ref) -> str:
        node = self.graph.nodes[ref.node]
        if ref.node in self.numbers:
            return f"({self.numbers[ref.node]}){f'[{ref.output}]' if len(node.outputs) > 1 else ''}"
        if node.op == "input":
            return node.scope or f"input {node.get('number')}"
        if node.op == "parameter" and node.get("trained"):
            return f"learned {self._type(ref)}"
        if node.op == "cotangent":
            return f"gradient {self._type(ref)}"
        if node.op != "constant" or node.scope == CONSTRUCTOR:
            return f"fixed {self._type(ref)}"
        value = node.get("value")
        return f"given {self._type(ref) if isinstance(value, str | tuple) else self._literal(value)}"

    def _type(self, ref: Ref) -> str:
        kind = self.graph.type_of(ref)
        sizes = "×".join(map(self._literal, kind.shape)) or "scalar"
        return sizes if kind.dtype == "float32" else f"{kind.dtype} {sizes}"

    def _literal(self, value: Argument) -> str:
        return self._letters.get(value.text, "varies") if isinstance(value, Size) else str(value)

    def _settings(self, node: Node) -> Iterator[str]:
        for name, value in node.arguments:
            if name in ("input", "other") or name in _STATED or value is None:
                continue
            items = list(_flat(value))
            neutral = bool(items) and set(items) == {_NEUTRAL.get(node.op, {}).get(name)}
            if neutral or any(isinstance(item, Ref) for item in items):
                continue
            texts = list(map(self._literal, items))
            if value is False:
                yield from () if name in _UNSET_FLAGS else (f"not {name}",)
            elif value is True:
                yield name
            elif name == "reduction" and value in range(len(_REDUCTIONS)):
                yield f"reduction {_REDUCTIONS[value]}"
            else:
                yield f"{name} {'×'.join(texts)}"

    # -- motifs ----------------------------------------------------------------------------------------------------

    def find_motifs(self) -> list[Motif]:
        """Return the motifs of what forward computes from its inputs, in the order of their last operation."""
        found = []
        for index in sorted((self.live & self.numbers.keys()) - self.backward):
            node = self.graph.nodes[index]
            for kind, matches in _MOTIFS.items():
                if kind_match := matches(self, index, node):
                    found.append(kind_match._replace(kind=kind))
        return found

    def motif(self, *indices: int, **facts: bool) -> Motif:
        """Return a motif of these nodes."""
        return Motif("", tuple(sorted({self.numbers[index] for index in indices if index in self.numbers})), facts)

    def shape(self, ref: Ref) -> tuple[int, ...]:
        """Return the shape of a value in the first run."""
        sizes = self.graph.type_of(ref).shape
        return tuple(int(size.value) if isinstance(size, Size) else size for size in sizes)

    def find_channel_axis(self) -> int | None:
        """Return the axis of the channels of the first input, as the layers that read it define it; None if unknown.

        They may read it after operations element by element.
        """
        first = [i for i, node in enumerate(self.graph.nodes) if node.op == "input" and node.get("number") == 0]
        axes, seen = set[int](), set(first)
        for place in first:
            rank = len(self.graph.nodes[place].outputs[0].shape)
            for index in self.readers.get(place, ()):
                node = self.graph.nodes[index]
                reads = bool(node.inputs) and node.inputs[0].node == place
                if node.op in _LAST and reads:
                    axes.add(-1)
                elif node.op in _FIRST and reads:
                    axes.add(1)
                elif node.op.startswith(_POOLS + _UPSAMPLES):
                    axes.add(1 if f"{rank - 2}d" in node.op else 0)  # 0: without a batch, nothing is said
                elif node.op not in MOVES and node.outputs[0].shape == self.graph.nodes[place].outputs[0].shape:
                    first += [index] if index not in seen else []
                    seen.add(index)
        return axes.pop() or None if len(axes) == 1 else None

    def origin(self, index: int, through: frozenset[str] = MOVES) -> int:
        """Return the node behind operations that only move elements."""
        while self.graph.nodes[index].op in through:
            index = self.graph.nodes[index].inputs[0].node
        return index

    def leads(self, source: int, target: int) -> bool:
        """Return whether a target is computed from a source by an operation with a parameter on the way."""
        waiting, seen = [(target, False)], set[tuple[int, bool]]()
        while waiting:
            index, learns = waiting.pop()
            if (index, learns) in seen or index < source:
                continue
            seen.add((index, learns))
            if index == source:
                if learns:
                    return True
                continue
            inputs = [ref.node for ref in self.graph.nodes[index].inputs]
            learns = learns or any(node in self.learned for node in inputs)
            waiting += [(node, learns) for node in inputs if node in self.live]
        return False

    def find_behind(self, ref: Ref, axis: int, op: str) -> Iterator[tuple[int, int]]:
        """Yield operations of one name behind others that keep an axis and its order, each with that axis there."""
        waiting, seen = [(ref, axis)], set[tuple[Ref, int]]()
        while waiting:
            place = ref, axis = waiting.pop()
            node = self.graph.nodes[ref.node]
            if place in seen or ref.node not in self.live:
                continue
            seen.add(place)
            if node.op == op:
                yield ref.node, axis
                continue
            for source in node.inputs:
                before = self._axis_before(node, self.shape(ref), self.shape(source), axis)
                waiting += [] if before is None else [(source, before)]

    def _axis_before(self, node: Node, after: tuple[int, ...], before: tuple[int, ...], axis: int) -> int | None:
        """Return which axis of what an operation reads is an axis of its result; None if none surely is."""
        place: int | None = None
        if node.op in _ELEMENTWISE or node.op == "expand":
            place = axis - len(after) + len(before)
        elif node.op == "permute":
            place = node.get("dims")[axis]
        elif node.op == "slice":
            place = axis if node.get("dim") != axis else None
        elif node.op == "reshape":
            same = (
                i for i, size in enumerate(before) if size == after[axis] and prod(before[:i]) == prod(after[:axis])
            )
            place = next(same, None) if after[axis] > 1 else None
        elif node.op == "linear":  # over heads
            place = axis if axis < len(after) - 1 else None
        elif node.op == "convolution" and set(self.shape(node.inputs[1])[2:]) == {1}:
            place = axis if axis > 1 else None
        if not isinstance(place, int) or place < 0:  # even the order of dimensions may vary
            return None
        return place if before[place : place + 1] == (after[axis],) else None


def _flat(value: Argument) -> Iterator[Argument]:
    if isinstance(value, tuple) and not isinstance(value, Ref | Size):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _find_residual(facts: Facts, index: int, node: Node) -> Motif | None:
    """`x + f(x)`: one operand is computed from the other by an operation with parameters; both have the sum's shape.

    `x + (f(x) - x).detach()` is none: its value is `f(x)`, with the gradient of `x`.
    """
    if node.op != "add" or len(node.inputs) != 2:
        return None
    shape = node.outputs[0].shape
    first, other = sorted(ref.node for ref in node.inputs)
    if facts.graph.nodes[facts.origin(other, MOVES - {"stop_gradient"})].op == "stop_gradient":
        return None
    equal = all(facts.graph.type_of(ref).shape == shape for ref in node.inputs)
    return facts.motif(other, index) if equal and first in facts.live and facts.leads(first, other) else None


def _find_gate(facts: Facts, index: int, node: Node) -> Motif | None:
    """`x * sigmoid(f(y))` with parameters in f; `x * sigmoid(x)` is an activation, a softmax over one element is 1."""
    if node.op != "mul" or len(node.inputs) != 2:
        return None
    for gated, gate in (sorted(node.inputs), sorted(node.inputs, reverse=True)):  # a gate is computed from the gated
        bounded = facts.origin(gate.node)
        behind = facts.graph.nodes[bounded]
        if behind.op not in _BOUNDED or not {bounded, gated.node} <= facts.live:
            continue
        if behind.op == "_softmax" and behind.outputs[0].shape[behind.get("dim")] == 1:
            continue
        before = facts.origin(behind.inputs[0].node)
        inputs = [ref.node for ref in facts.graph.nodes[before].inputs]
        learns = any(i in facts.learned for i in inputs) or any(facts.leads(i, before) for i in inputs)
        if before != facts.origin(gated.node) and learns:
            return facts.motif(bounded, index)
    return None


def _find_attention(facts: Facts, index: int, node: Node) -> Motif | None:
    """Products of queries and keys, a softmax over the keys, and the sum of the values of the keys with these weights.

    Both products and the softmax are followed along the axis of the keys.
    """
    if node.op == "attention":
        live = all(node.get(name).node in facts.live for name in ("query", "key", "value"))
        return facts.motif(index, returns_weights=False) if live else None
    if node.op != "matmul" or not all(ref.node in facts.live for ref in node.inputs):
        return None
    one, other = node.inputs
    sums = ((one, len(facts.shape(one)) - 1), (other, max(len(facts.shape(other)) - 2, 0)))
    for weights, axis in (found for ref, keys in sums for found in facts.find_behind(ref, keys, "_softmax")):
        softmax = facts.graph.nodes[weights]
        rank = len(softmax.outputs[0].shape)
        if softmax.get("dim") % rank != axis:
            continue
        for scores, keys in facts.find_behind(softmax.inputs[0], axis, "matmul"):
            product = facts.graph.nodes[scores]
            of_both = all(ref.node in facts.live for ref in product.inputs)
            if of_both and keys >= len(product.outputs[0].shape) - 2:
                returned = {facts.origin(ref.node) for ref in facts.graph.outputs}
                return facts.motif(scores, weights, index, returns_weights=weights in returned)
    return None


def _find_normalization(facts: Facts, index: int, node: Node) -> Motif | None:
    """A normalizing operation on what depends on an input, or `x * rsqrt(mean(x ** 2) + e)`."""
    if node.op in _NORMS:
        return facts.motif(index) if node.inputs[0].node in facts.live else None
    if node.op != "mul" or len(node.inputs) != 2:
        return None
    for value, factor in (node.inputs, node.inputs[::-1]):
        chain = [facts.origin(factor.node)]
        for op in ("rsqrt", "add", "mean", "pow"):
            here = facts.graph.nodes[chain[-1]]
            if here.op != op or not here.inputs:
                break
            chain.append(here.inputs[0].node)
        else:
            if facts.graph.nodes[chain[3]].get("exponent") == 2 and chain[4] == value.node:
                return facts.motif(*chain[:4], index)
    return None


def _find_pooling(facts: Facts, index: int, node: Node) -> Motif | None:
    """A pooling operation over more than one place, or the mean or maximum over all places of an image.

    The mean of powers is a moment, and a mean that is taken from its own input centers it.
    """
    if not node.inputs:
        return None
    source = node.inputs[0]
    before, after = facts.shape(source), facts.shape(Ref(index))
    if node.op.startswith(_POOLS):
        windows = node.get("kernel_size")
        whole = prod(before) > prod(after) if windows is None else any(size != 1 for size in _flat(windows))
        return facts.motif(index) if whole else None
    places = tuple(range(2, len(before)))
    dims = (places, tuple(axis - len(before) for axis in places))
    if node.op not in ("mean", "amax") or len(before) < 4 or node.get("dim") not in dims:
        return None
    behind = facts.graph.nodes[source.node]
    moment = behind.op in ("pow", "abs") or (behind.op == "mul" and len(set(behind.inputs)) == 1)
    centers = any(
        source in facts.graph.nodes[i].inputs and facts.graph.nodes[i].op == "sub" for i in facts.readers.get(index, ())
    )
    return None if moment or centers else facts.motif(index)


def _find_upsampling(facts: Facts, index: int, node: Node) -> Motif | None:
    """An operation that gives more places than it reads."""
    steps = node.get("stride") if node.op == "convolution" and node.get("transposed") else ()
    strided = any(step != 1 for step in steps)
    if not strided and not node.op.startswith(_UPSAMPLES):
        return None
    before, after = facts.shape(node.inputs[0]), facts.shape(Ref(index))
    return facts.motif(index) if prod(after[2:]) > prod(before[2:]) and len(after) > 2 else None


def _find_windows(
    facts: Facts, index: int, node: Node, *, grid: tuple[int, int], window: tuple[int, int], inverse: bool
) -> Motif | None:
    """`N×H×W×C` as `N×H/a×a×W/b×b×C`, the windows to the front, and one window after the other; or the way back.

    Args: grid, window: which of the six parts count the windows, and the places of one window.
    """
    nodes = facts.graph.nodes
    if node.op != "reshape":
        return None
    moved = nodes[node.inputs[0].node]
    if moved.op != "permute" or moved.get("dims") != (0, 1, 3, 2, 4, 5) or nodes[moved.inputs[0].node].op != "reshape":
        return None
    cut = moved.inputs[0]
    parts = facts.shape(cut)
    whole, windows = facts.shape(nodes[cut.node].inputs[0]), facts.shape(Ref(index))
    if inverse:
        whole, windows = windows, whole
    count = prod(parts[i] for i in grid)
    fits = (
        count > 1 and windows[0] == parts[0] * count and prod(windows[1:]) == prod(parts[i] for i in window) * parts[5]
    )
    fits = fits and (whole[0], whole[-1], len(whole) in (3, 4)) == (parts[0], parts[5], True)
    fits = fits and (len(whole) == 3 or whole[1] == parts[grid[0]] * parts[window[0]])
    return facts.motif(cut.node, node.inputs[0].node, index) if fits else None


_MOTIFS: Mapping[str, Callable[[Facts, int, Node], Motif | None]] = {
    "residual": _find_residual,
    "gate": _find_gate,
    "attention": _find_attention,
    "normalization": _find_normalization,
    "pooling": _find_pooling,
    "upsampling": _find_upsampling,
    "window partition": partial(_find_windows, grid=(1, 3), window=(2, 4), inverse=False),
    "window merge": partial(_find_windows, grid=(1, 2), window=(3, 4), inverse=True),
    "recurrence": lambda facts, index, node: facts.motif(index) if node.op in _RECURRENT else None,
    "embedding": lambda facts, index, node: (
        facts.motif(index) if node.op == "embedding" and node.inputs[0].node in facts.learned else None
    ),
}


def count_tensors(structure: Any) -> int:
    """Return how many tensors a returned value holds. Raises: ValueError if this is no structure of one."""
    if structure is None or structure == "tensor":
        return int(structure is not None)
    if isinstance(structure, dict) and structure.keys() == {"items"}:
        return sum(count_tensors(value) for _, value in structure["items"])
    if not isinstance(structure, list):
        raise ValueError(f"{structure!r:.40} is not what forward returns")
    return sum(map(count_tensors, structure))


def list_draws(graph: Graph) -> tuple[str, ...]:
    """Return the names of the operations that draw random numbers, each once."""
    drawing = (node.op for node in graph.nodes if node.get("draw") is not None and node.get("p") != 0)
    return tuple(dict.fromkeys(drawing))
