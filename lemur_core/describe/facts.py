"""Facts of a computation, read from its canonical graph: one line an operation, and the motifs that structure proves.

    (1) mean of x; dim (2, 3), keepdim -> N×512×1×1
    (2) convolution of (1), weight learned 128×512×1×1, bias learned 128; kernel 1×1 -> N×128×1×1
    (3) relu of (2) -> N×128×1×1
    (4) convolution of (3), weight learned 512×128×1×1, bias learned 512; kernel 1×1 -> N×512×1×1
    (5) sigmoid of (4) -> N×512×1×1
    (6) mul of x, (5) -> N×512×H×W
    returns (6)

An operand is the number of an operation, the name of an argument, a number, or a value that depends on no input:
`learned` (a parameter), `fixed` (a buffer, or a parameter that is not trained), `constant`. Sizes that vary with the
input are letters; equal letters are equal in all runs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from lemur_core.graphs.graph import LEAVES, RANDOM, Argument, Graph, Node, Ref
from lemur_core.graphs.symbolic import Size

_LETTERS = {1: "N", 2: "NC", 3: "NLC", 4: "NCHW", 5: "NCDHW"}
#: Settings that are written as sizes, and those that the shape of the result states.
_SIZES = ("kernel", "stride", "padding", "dilation", "normalized_shape")
_STATED = frozenset({"shape", "size", "draw"})
#: Flags that change nothing unless they are set; of others the opposite is stated: `not largest`.
_UNSET_FLAGS = frozenset(
    "transposed training train keepdim half_to_float ceil_mode scale_grad_by_freq sparse sparse_grad is_causal"  # noqa: SIM905
    " enable_gqa bidirectional use_mask cudnn_enabled descending accumulate stable".split()
)
#: Settings of a convolution that change nothing.
_NEUTRAL = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "output_padding": 0, "alpha": 1, "beta": 1}
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
_SCORES = MOVES | {"mul", "div", "add", "sub", "masked_fill", "where", "clamp", "tanh", "dropout"}


class Motif(NamedTuple):
    """A part of a graph whose structure proves what it is. Args: operations: their numbers. facts: further ones."""

    kind: str
    operations: tuple[int, ...]
    facts: Mapping[str, int | bool] = {}


@dataclass(frozen=True)
class Facts:
    """The facts of one graph."""

    graph: Graph

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The number of each operation, from 1, by the index of its node."""
        operations = (index for index, node in enumerate(self.graph.nodes) if node.op not in LEAVES)
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
        """The operations of a custom backward, which depend on a gradient."""
        backward: set[int] = set()
        for index, node in enumerate(self.graph.nodes):
            if node.op != "custom_gradient" and (
                node.op == "cotangent" or any(ref.node in backward for ref in node.inputs)
            ):
                backward.add(index)
        return frozenset(backward)

    # -- lines -----------------------------------------------------------------------------------------------------

    @cached_property
    def _letters(self) -> dict[str, str]:
        """The letter of each size that varies, by its formula."""
        letters: dict[str, str] = {}
        for node in self.graph.nodes:
            for kind in node.outputs:
                for axis, size in enumerate(kind.shape):
                    if isinstance(size, Size) and size.text not in letters:
                        letter = _LETTERS.get(len(kind.shape), "")[axis : axis + 1] or "D"
                        count = sum(other.rstrip("0123456789") == letter for other in letters.values())
                        letters[size.text] = f"{letter}{count + 1 if count else ''}"
        return letters

    def list_operations(self) -> list[str]:
        """Return one line for each operation, then one for what is returned."""
        lines = []
        for index, number in self.numbers.items():
            node = self.graph.nodes[index]
            operands, settings = ", ".join(self._operands(node)), ", ".join(self._settings(node))
            gives = ", ".join(self._type(Ref(index, output)) for output in range(len(node.outputs)))
            text = f"{node.op.strip('_')}{f' of {operands}' if operands else ''}{f'; {settings}' if settings else ''}"
            lines.append(f"({number}) {'in backward: ' if index in self.backward else ''}{text} -> {gives}")
        return [*lines, f"returns {', '.join(map(self._operand, self.graph.outputs)) or 'nothing'}"]

    def _operands(self, node: Node) -> Iterator[str]:
        """Yield the values that an operation reads, with the names of their arguments but for the first ones."""
        for name, value in node.arguments:
            refs = [item for item in _flat(value) if isinstance(item, Ref)]
            if name in ("input", "other") and not refs:
                yield self._literal(value)
            for place, ref in enumerate(refs):
                named = name not in ("input", "other", "tensors", "mask") and not place and len(node.arguments) > 1
                yield f"{name} {self._operand(ref)}" if named else self._operand(ref)

    def _operand(self, ref: Ref) -> str:
        node = self.graph.nodes[ref.node]
        if ref.node in self.numbers:
            return f"({self.numbers[ref.node]}){f'[{ref.output}]' if len(node.outputs) > 1 else ''}"
        if node.op == "input":
            return node.scope or f"input {node.get('number')}"
        if node.op == "parameter":
            return f"{'learned' if node.get('trained') else 'fixed'} {self._type(ref)}"
        return f"{'fixed' if node.op == 'buffer' else node.op} {self._type(ref)}"

    def _type(self, ref: Ref) -> str:
        kind = self.graph.type_of(ref)
        sizes = "×".join(map(self._literal, kind.shape)) or "scalar"
        return sizes if kind.dtype == "float32" else f"{kind.dtype} {sizes}"

    def _literal(self, value: Argument) -> str:
        return self._letters.get(value.text, value.text) if isinstance(value, Size) else str(value)

    def _settings(self, node: Node) -> Iterator[str]:
        for name, value in node.arguments:
            if name in ("input", "other") or name in _STATED or value is None:
                continue
            if value is False:
                yield from () if name in _UNSET_FLAGS else (f"not {name}",)
                continue
            items = list(_flat(value))
            neutral = node.op == "convolution" and set(items) == {_NEUTRAL.get(name)}
            if neutral or any(isinstance(item, Ref) for item in items):
                continue
            texts = list(map(self._literal, items))
            if value is True:
                yield name
            elif not isinstance(value, tuple):
                yield f"{name} {texts[0]}"
            else:
                sizes = "×".join(texts) if name.startswith(_SIZES) else f"({', '.join(texts)})"
                yield f"{name} {sizes}"

    # -- motifs ----------------------------------------------------------------------------------------------------

    def find_motifs(self) -> list[Motif]:
        """Return the motifs, in the order of their last operation."""
        found = []
        for index in (index for index in self.numbers if index not in self.backward):
            node = self.graph.nodes[index]
            for kind, matches in _MOTIFS.items():
                if kind_match := matches(self, index, node):
                    found.append(kind_match._replace(kind=kind))
        return found

    def motif(self, *indices: int, **facts: int | bool | None) -> Motif:
        """Return a motif of these nodes; facts that are None are left out."""
        stated = {name: value for name, value in facts.items() if value is not None}
        return Motif("", tuple(sorted({self.numbers[index] for index in indices if index in self.numbers})), stated)

    def find_channel_axis(self) -> int | None:
        """Return the axis of the channels of the first input, as the layers that read it define it; None if unknown.

        They may read it after operations element by element.
        """
        first = [i for i, node in enumerate(self.graph.nodes) if node.op == "input" and node.get("number") == 0]
        axes, seen = set[int](), set(first)
        for place in first:
            for index in self.readers.get(place, ()):
                node = self.graph.nodes[index]
                if node.op in _LAST and node.inputs[0].node == place:
                    axes.add(-1)
                elif node.op in _FIRST or node.op.startswith(_POOLS + _UPSAMPLES):
                    axes.add(1)
                elif node.op not in MOVES and node.outputs[0].shape == self.graph.nodes[place].outputs[0].shape:
                    first += [index] if index not in seen else []
                    seen.add(index)
        return axes.pop() if len(axes) == 1 else None

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
    """`x * sigmoid(f(y))` with parameters in f; `x * sigmoid(x)` is an activation."""
    if node.op != "mul" or len(node.inputs) != 2:
        return None
    for gated, gate in (sorted(node.inputs), sorted(node.inputs, reverse=True)):  # a gate is computed from the gated
        bounded = facts.origin(gate.node)
        behind = facts.graph.nodes[bounded]
        if behind.op not in _BOUNDED or not {bounded, gated.node} <= facts.live:
            continue
        before = facts.origin(behind.inputs[0].node)
        inputs = [ref.node for ref in facts.graph.nodes[before].inputs]
        learns = any(i in facts.learned for i in inputs) or any(facts.leads(i, before) for i in inputs)
        if before != facts.origin(gated.node) and learns:
            return facts.motif(bounded, index)
    return None


def _find_attention(facts: Facts, index: int, node: Node) -> Motif | None:
    """Products of queries and keys, a softmax over the keys, and the weighted sum of the values."""
    nodes = facts.graph.nodes
    if node.op == "attention":
        shape = facts.graph.type_of(node.get("query")).shape
        return facts.motif(index, heads=_count_heads(shape), returns_weights=False)
    if node.op != "matmul":
        return None
    weights = facts.origin(node.inputs[0].node, MOVES | {"dropout", "mul"})
    if nodes[weights].op != "_softmax" or nodes[weights].get("dim") not in (
        -1,
        len(nodes[weights].outputs[0].shape) - 1,
    ):
        return None
    scores = nodes[weights].inputs[0].node
    while nodes[scores].op in _SCORES:
        behind = [ref.node for ref in nodes[scores].inputs if ref.node in facts.live]
        products = [i for i in behind if nodes[facts.origin(i, _SCORES)].op == "matmul"]
        if not products:
            return None
        scores = products[0]
    if nodes[scores].op != "matmul" or not all(ref.node in facts.live for ref in (*nodes[scores].inputs, *node.inputs)):
        return None
    returned = {facts.origin(ref.node) for ref in facts.graph.outputs}
    heads = _count_heads(nodes[scores].outputs[0].shape)
    return facts.motif(scores, weights, index, heads=heads, returns_weights=weights in returned)


def _count_heads(shape: tuple[int, ...]) -> int | None:
    """Return the heads of scores or queries: batch, heads, queries, keys; None if they are not a dimension."""
    return shape[1] if len(shape) == 4 and not isinstance(shape[1], Size) else None


def _find_normalization(facts: Facts, index: int, node: Node) -> Motif | None:
    """A normalizing operation, or `x * rsqrt(mean(x ** 2) + e)`."""
    if node.op in _NORMS:
        return facts.motif(index)
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
    """A pooling operation, or the mean or maximum over all places of an image; a mean of powers is a moment."""
    if node.op.startswith(_POOLS):
        return facts.motif(index)
    rank = len(facts.graph.type_of(node.inputs[0]).shape) if node.inputs else 0
    places = tuple(range(2, rank))
    whole = (
        node.op in ("mean", "amax") and rank > 3 and node.get("dim") in (places, tuple(axis - rank for axis in places))
    )
    if not whole or facts.graph.nodes[node.inputs[0].node].op == "pow":
        return None
    return facts.motif(index) if node.inputs[0].node in facts.live else None


def _find_upsampling(facts: Facts, index: int, node: Node) -> Motif | None:
    strides = node.get("stride") if node.op == "convolution" and node.get("transposed") else ()
    larger = any(type(step) is int and step > 1 for step in strides or ())
    return facts.motif(index) if node.op.startswith(_UPSAMPLES) or larger else None


def _find_partition(facts: Facts, index: int, node: Node) -> Motif | None:
    return _find_windows(facts, index, node, inverse=False)


def _find_merge(facts: Facts, index: int, node: Node) -> Motif | None:
    return _find_windows(facts, index, node, inverse=True)


def _find_windows(facts: Facts, index: int, node: Node, *, inverse: bool) -> Motif | None:
    """`N×H×W×C` to `N×H/a×a×W/b×b×C`, the windows to the front, and one window after the other; or the way back."""
    if node.op != "reshape" or not node.inputs:
        return None
    moved = facts.graph.nodes[node.inputs[0].node]
    if moved.op != "permute" or moved.get("dims") != (0, 1, 3, 2, 4, 5):
        return None
    cut = facts.graph.nodes[moved.inputs[0].node]
    whole = facts.graph.type_of(cut.inputs[0]).shape if cut.op == "reshape" and cut.inputs else ()
    parts, result = cut.outputs[0].shape if cut.op == "reshape" else (), node.outputs[0].shape
    if any(isinstance(size, Size) for size in (*whole, *parts, *result)):
        whole, parts, result = (tuple(map(_value, shape)) for shape in (whole, parts, result))
    if len(parts) != 6:
        return None
    if inverse:
        fits = len(result) == 4 and result[1:] == (parts[1] * parts[3], parts[2] * parts[4], parts[5])
    else:
        fits = len(whole) == 4 and whole[1:] == (parts[1] * parts[2], parts[3] * parts[4], parts[5])
        fits = (
            fits
            and result[0] == parts[0] * parts[1] * parts[3]
            and prod(result[1:]) == prod(parts[i] for i in (2, 4, 5))
        )
    return facts.motif(moved.inputs[0].node, node.inputs[0].node, index) if fits else None


def _value(size: int | Size) -> int:
    return int(size.value) if isinstance(size, Size) else size


def _find_recurrence(facts: Facts, index: int, node: Node) -> Motif | None:
    return facts.motif(index) if node.op in _RECURRENT else None


def _find_embedding(facts: Facts, index: int, node: Node) -> Motif | None:
    if node.op != "embedding":
        return None
    table, *_ = (ref.node for ref in node.inputs)
    return facts.motif(index) if table in facts.learned else None


_MOTIFS: Mapping[str, Callable[[Facts, int, Node], Motif | None]] = {
    "residual": _find_residual,
    "gate": _find_gate,
    "attention": _find_attention,
    "normalization": _find_normalization,
    "pooling": _find_pooling,
    "upsampling": _find_upsampling,
    "window partition": _find_partition,
    "window merge": _find_merge,
    "recurrence": _find_recurrence,
    "embedding": _find_embedding,
}


def list_draws(graph: Graph) -> tuple[str, ...]:
    """Return the names of the operations that draw random numbers, each once."""
    drawn = (node.op for node in graph.nodes if node.get("draw") is not None or node.op in RANDOM)
    return tuple(dict.fromkeys(drawn))
