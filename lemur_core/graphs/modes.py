"""Merge the eval and the train run of one module: each operation once, with the differences between the modes marked.

Both runs are in execution order, so the longest common subsequence of their operations pairs them. Operations of only
one mode stay separate; where a paired operation reads different values in the two modes, a `ModeChoice` holds both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

from lemur_core.graphs.graph import LEAVES, RANDOM, Argument, Graph, Node, Ref, replace_refs

#: Arguments that depend on the mode alone; layers and calls express them with `self.training`.
_FLAGS = frozenset({"training", "momentum", "train", "use_input_stats", "draw", "dropout_p"})
_BY_FLAGS = frozenset({"batch_norm", "instance_norm", "attention", "lstm", "gru", "rnn_tanh", "rnn_relu"})

EVAL, TRAIN = 0, 1
Pair = tuple[int | None, int | None]  # the nodes of one operation in eval and in train mode


@dataclass(frozen=True, slots=True)
class Value:
    """One output of a step; `index` is that of the step."""

    index: int
    output: int = 0


@dataclass(frozen=True, slots=True)
class ModeChoice:
    """One value in eval mode, another in train mode."""

    eval: Any
    train: Any


@dataclass(slots=True)
class ModeStep:
    """One operation; `nodes` holds its node in eval and in train mode, None where that mode does not execute it.

    `skipped`: the value that it passes on unchanged in eval mode, as dropout does.
    """

    nodes: tuple[Node | None, Node | None]
    arguments: dict[str, Argument] = field(default_factory=dict)
    skipped: Value | None = None

    @property
    def node(self) -> Node:
        """The node of the operation: that of train mode if there is one, else that of eval mode."""
        node = self.nodes[TRAIN] or self.nodes[EVAL]
        assert node is not None
        return node

    @property
    def mode(self) -> int | None:
        """The only mode that executes it; None if both do."""
        if self.skipped is not None or (self.nodes[EVAL] and self.nodes[TRAIN]):
            return None
        return EVAL if self.nodes[EVAL] else TRAIN


#: A buffer that a run changes: the buffer, its new value, and the mode in which it changes (both if None).
Write = tuple[Value, Argument, int | None]


@dataclass(slots=True)
class ModeModule:
    """Both modes of a module: its steps in order, its outputs, and the buffers it writes, each with its mode."""

    steps: list[ModeStep]
    outputs: list[Argument]
    writes: list[Write]


def merge(evaluated: Graph, trained: Graph | None) -> ModeModule:
    """Merge both modes; without a train run, the eval run is used for both."""
    return _Merge((evaluated, trained or evaluated)).module()


class _Merge:
    def __init__(self, graphs: tuple[Graph, Graph]) -> None:
        self.graphs = graphs
        self.steps: list[ModeStep] = []
        self.of: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def module(self) -> ModeModule:
        for indices in self._order():
            self._take(indices)
        pairs = zip_longest(*(graph.outputs for graph in self.graphs))
        return ModeModule(self.steps, [self._join(one, other) for one, other in pairs], self._writes())

    def _writes(self) -> list[Write]:
        by_mode: list[dict[Value, Argument]] = []
        for mode, graph in enumerate(self.graphs):
            refs = ((self._value(mode, target), self._value(mode, value)) for target, value in graph.writes)
            by_mode.append({target: value for target, value in refs if isinstance(target, Value)})
        both = [(target, value, None) for target, value in by_mode[EVAL].items() if by_mode[TRAIN].get(target) == value]
        modes = ((mode, *write) for mode in (EVAL, TRAIN) for write in by_mode[mode].items())
        return [*both, *((t, value, mode) for mode, t, value in modes if by_mode[1 - mode].get(t) != value)]

    def _order(self) -> list[Pair]:
        labels = [[_label(node) for node in graph.nodes] for graph in self.graphs]
        if labels[EVAL] == labels[TRAIN]:
            return [(index, index) for index in range(len(self.graphs[EVAL].nodes))]
        order: list[Pair] = []
        matcher = SequenceMatcher(None, labels[EVAL], labels[TRAIN], autojunk=False)
        for kind, start, end, first, last in matcher.get_opcodes():
            if kind == "equal":
                order += zip(range(start, end), range(first, last), strict=True)
            else:
                order += [(index, None) for index in range(start, end)]
                order += [(None, index) for index in range(first, last)]
        return _leaves_first(order, self.graphs) if any(trained is None for _, trained in order) else order

    def _take(self, indices: Pair) -> None:
        one, other = (
            None if index is None else graph.nodes[index] for graph, index in zip(self.graphs, indices, strict=True)
        )
        step = ModeStep((one, other))
        if one is not None and other is not None:
            ours, theirs = dict(one.arguments), dict(other.arguments)
            step.arguments = {name: self._join(ours.get(name), theirs.get(name)) for name in {**theirs, **ours}}
        else:
            mode = EVAL if one is not None else TRAIN
            step.arguments = {name: self._map_argument(mode, value) for name, value in step.node.arguments}
            if mode == TRAIN and step.node.op in RANDOM and isinstance(step.arguments["input"], Value):
                step.skipped = step.arguments["input"]
        self.steps.append(step)
        for mode, index in enumerate(indices):
            if index is not None:
                self.of[mode][index] = len(self.steps) - 1

    def _map_argument(self, mode: int, value: Argument) -> Argument:
        return replace_refs(value, lambda ref: self._value(mode, ref))

    def _value(self, mode: int, ref: Ref) -> Value:
        return Value(self.of[mode][ref.node], ref.output)

    def _join(self, ours: Argument, theirs: Argument) -> Argument:
        if isinstance(ours, Ref) and isinstance(theirs, Ref):
            one, other = self._value(EVAL, ours), self._value(TRAIN, theirs)
            return other if self._corresponds(other, one) else ModeChoice(one, other)
        if type(ours) is tuple and type(theirs) is tuple and len(ours) == len(theirs):
            return tuple(self._join(*items) for items in zip(ours, theirs, strict=True))
        ours, theirs = self._map_argument(EVAL, ours), self._map_argument(TRAIN, theirs)
        return theirs if ours == theirs else ModeChoice(ours, theirs)

    def _corresponds(self, value: Value, wanted: Value) -> bool:
        """Return whether a value of train mode corresponds to `wanted` in eval mode."""
        current: Value | None = value
        while current is not None and current != wanted:
            current = self.steps[current.index].skipped
        return current is not None


def _leaves_first(order: Sequence[Pair], graphs: tuple[Graph, Graph]) -> list[Pair]:
    """Pair the parameters and buffers that both modes read wherever the subsequence left them separate."""
    pairs: dict[Any, list[int | None]] = {}
    rest: list[Pair] = []
    for indices in order:
        node = next(graph.nodes[i] for graph, i in zip(graphs, indices, strict=True) if i is not None)
        if node.op not in LEAVES or node.op in ("constant", "cotangent"):
            rest.append(indices)
            continue
        pair = pairs.setdefault((node.op, node.scope, node.get("number")), [None, None])
        pair[:] = (old if new is None else new for old, new in zip(pair, indices, strict=True))
    return [*((pair[EVAL], pair[TRAIN]) for pair in pairs.values()), *rest]


def _label(node: Node) -> Any:
    flags = _FLAGS if node.op in _BY_FLAGS else frozenset({"draw"})
    kept = ((name, value) for name, value in node.arguments if name not in flags)
    arguments = tuple((name, replace_refs(value, lambda _ref: "%")) for name, value in kept)
    return node.op, arguments, node.scope, node.outputs[:1] if node.op in _BY_FLAGS else node.outputs
