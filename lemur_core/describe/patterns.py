"""Describe a graph in sentences: its operations in order, and the patterns that they form, by structure alone.

A sentence follows one value through operations as long as nothing else reads it; where values branch or merge, a new
sentence begins, and sentences refer to each other by number. Patterns are residuals, gates, attention, pooling
pyramids, normalizations, splits and concatenations. Repeats are folded, and there are at most `MAX_SENTENCES`.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from lemur_core.describe.attention import MAX_STEPS, RESHAPING, DataFlow, find_attention
from lemur_core.describe.folding import fold_phrases, fold_sentences, number_sentences
from lemur_core.describe.layouts import derive_layouts
from lemur_core.describe.roles import ValueNames, describe_outputs, describe_roles, describe_weights, read_outputs
from lemur_core.describe.sentences import (
    OPERATORS,
    RESHAPED,
    WINDOWS,
    describe,
    format_number,
    join_words,
    name_dimensions,
    name_extent,
    remove_marks,
)
from lemur_core.graphs.graph import Argument, Graph, Node, Ref

_IN_TRAINING = 6  # maximum number of differences that are named
_RETURNED = 8  # maximum number of returned values that are named
_PHRASES = 14  # maximum phrases per sentence
_MARK = re.compile(r"\{(\d+)\}")  # the value of a node, in a phrase

_GATES = frozenset({"sigmoid", "hardsigmoid", "tanh", "_softmax", "relu6"})
_BOUNDED = {"clamp": ("min", "max"), "hardtanh": ("min_val", "max_val")}
#: Patterns of one operation.
_SINGLE = {
    "batch_norm": "batch normalisation",
    "layer_norm": "layer normalisation",
    "group_norm": "group normalisation",
    "instance_norm": "instance normalisation",
    "rms_norm": "root-mean-square normalisation",
    "stop_gradient": "a stopped gradient",
    "custom_gradient": "a gradient of its own",
    "roll": "a roll",
}
_COMBINED = {"matmul": "product of matrices", "mul": "product", "add": "sum", "sub": "difference", "div": "quotient"}
_RESIDUAL = ": a residual"
_AS_BEFORE = ", with the weights of "
_POOLING = ("max_pool", "avg_pool", "adaptive")


@dataclass(frozen=True, slots=True)
class GraphDescription:
    """The description of a graph. `patterns` come with their counts, the most frequent first."""

    sentences: tuple[str, ...]
    patterns: tuple[str, ...]


@dataclass(slots=True)
class _Chain:
    """A row of operations: their nodes, and its phrases; `{7}` in a phrase refers to the value of node 7."""

    nodes: list[int]
    phrases: list[str] = field(default_factory=list)
    viewed: tuple[int, ...] = ()  # the shape before the views that its last operations are


def describe_graph(graph: Graph, trained: Graph | None = None) -> GraphDescription:
    """Describe a canonical graph of eval mode, and how the graph of train mode differs.

    Args: trained: the graph of train mode, if there is one.
    Returns: the numbered sentences, and the patterns with their counts, the most frequent first.
    """
    describer = _Describer(graph)
    sentences = tuple(describer.sentences())
    counts = dict(describer.patterns)
    if trained is not None and trained != graph:
        sentences += tuple(_describe_training(describer, others := _Describer(trained)))
        counts |= {name: number for name, number in others.patterns.items() if name == "stochastic depth"}
    counted = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    patterns = tuple(name if number == 1 else f"{name}, {number} times" for name, number in counted)
    return GraphDescription(sentences, patterns)


def _describe_training(evaluated: "_Describer", trained: "_Describer") -> list[str]:
    """List what train mode does besides, or instead."""
    before, after = (dict.fromkeys(describer.list_phrases()) for describer in (evaluated, trained))
    if before == after and evaluated.sentences() == trained.sentences():
        return []
    more, fewer = ([text for text in one if text not in other] for one, other in ((after, before), (before, after)))
    if len(more) + len(fewer) > _IN_TRAINING or not more:
        return ["Train mode goes another way."]
    instead = f" in place of {join_words(fewer)}" if fewer else ""
    return [f"In train mode {'' if fewer else 'also '}{join_words(more)}{instead}."]


class _Describer:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self.layouts = derive_layouts(graph)
        self.patterns: Counter[str] = Counter()
        self.flow = DataFlow(graph)
        self.live, self.reached = self.flow.live, self.flow.reached
        self.attention = find_attention(self.flow)
        self.hidden = {index for attention in self.attention.values() for index in attention.within}
        self.sources = {index: self._find_sources(index) for index in self.live}
        self.users: Counter[int] = Counter(
            source for index in self.live if index not in self.hidden for source in self.sources[index]
        )
        # A returned value has one more reader, so that no chain continues past it.
        for ref in graph.outputs:
            self.users[ref.node] += 1
        self.outputs = {
            index: read_outputs(graph, index, self.flow.users.get(index, ()))
            for index in self.live
            if len(self.nodes[index].outputs) > 1
        }
        self.names = ValueNames(graph, self.layouts, self.reached, self.outputs)
        #: weights -> the first operation with them
        self.first_with = {weight.node: index for index in reversed(self.live) if (weight := self._weight(index))}
        self.chains = self._list_chains() if len(self.live) <= MAX_STEPS else []
        self.inputs = [index for index, node in enumerate(self.nodes) if node.op == "input"]

    def _find_sources(self, index: int) -> list[int]:
        """Return the distinct values that an operation reads; for attention: queries, keys, values."""
        attention = self.attention.get(index)
        read = attention.read if attention else [ref.node for ref in self.nodes[index].inputs]
        # The remaining inputs belong to the backward computation.
        if self.nodes[index].op == "custom_gradient":
            read = read[:1]
        return [source for source in dict.fromkeys(read) if source in self.reached]

    # --- patterns --------------------------------------------------------------------------------------------------

    def _is_gate(self, index: int) -> bool:
        """Return whether a value is a gate: bounded, by a sigmoid or similar."""
        while self.nodes[index].op in RESHAPING | {"div", "mul"} and len(self.sources.get(index, ())) == 1:
            index = self.sources[index][0]
        node = self.nodes[index]
        if node.op in _BOUNDED:
            low, high = (node.get(name) for name in _BOUNDED[node.op])
            return low == 0 and high is not None
        return node.op in _GATES

    # --- phrases ---------------------------------------------------------------------------------------------------

    def _describe_node(self, index: int, main: int | None) -> str:
        """Describe what a node does with the value of its chain.

        Args: main: that value; None if the chain begins with several values.
        """
        node = self.nodes[index]
        if index in self.attention:
            return self._describe_attention(index, main)
        if node.op in _SINGLE:
            self.patterns[_SINGLE[node.op]] += 1
        others = [source for source in self.sources[index] if source != main]
        if node.op == "cat":
            return self._describe_cat(index, main)
        if node.op in ("add", "sub", "mul", "div", "maximum", "minimum", "matmul"):
            return self._describe_binary(index, node, main, others)
        if self._is_part_of_another(index):
            return ""
        if node.op == "expand" and self._is_copied(index):
            return f"repeated to {self.names.format_shape(index)}"
        return self._describe_reading(index, node, main, others)

    def _is_copied(self, index: int) -> bool:
        """Return whether what reads an expanded value sees its copies; most operations would expand it themselves."""
        returned = any(ref.node == index for ref in self.graph.outputs)
        return returned or any(self.nodes[user].op in ("reshape", "cat") for user in self.flow.users.get(index, ()))

    def _describe_reading(self, index: int, node: Node, main: int | None, others: list[int]) -> str:
        """Describe an operation with the values that it reads besides that of its chain."""
        phrase = describe_roles(self.graph, node, self.layouts, lambda value: self._name_read(value, main, index))
        if phrase:
            return phrase
        phrase = describe_outputs(node, describe(self.graph, index, self.layouts), self.outputs.get(index, frozenset()))
        if weight := self._weight(index):
            if weight.node not in self.reached:
                first = self.first_with[weight.node]
                again = "" if first == index else f"{_AS_BEFORE}{{{first}}}"
                return phrase + describe_weights(self.graph, weight.node, self.layouts) + again
            if main == weight.node:
                return f"the weights, for {self._name_read(node.get('input'), main, index)}, of a {phrase}"
            return f"{phrase}, weights {self.names.name(weight)}"
        if others and phrase:
            return f"{phrase}{', with' if main is not None else ' of'} {self.names.name_all(others, index)}"
        return phrase

    def _weight(self, index: int) -> Ref | None:
        """Return the weights of a convolution or linear layer; None for any other operation."""
        node = self.nodes[index]
        weight = node.get("weight") if node.op in ("convolution", "linear") else None
        return weight if isinstance(weight, Ref) else None

    def _name_read(self, value: Argument, main: int | None, reader: int) -> str:
        return "it" if isinstance(value, Ref) and value.node == main else self.names.name(value, reader)

    def _is_part_of_another(self, index: int) -> bool:
        """Return whether a value is only moved on the way to windows, or to join the heads of an attention."""
        node, users = self.nodes[index], self.flow.users.get(index, [])
        if node.op == "reshape" and len(users) == 1 and self.nodes[users[0]].get("dims") == WINDOWS:
            return True
        while node.op in ("reshape", "permute") and node.get("dims") != WINDOWS:
            index = node.inputs[0].node
            node = self.nodes[index]
        return index in self.attention

    def _describe_attention(self, index: int, main: int | None) -> str:
        attention = self.attention[index]
        self.patterns["attention"] += 1
        heads = f", ‹{attention.heads}› heads" if attention.heads and attention.heads > 1 else ""
        names = [self.names.name(Ref(source)) for source in attention.read]
        softmax = [] if "softmax" in attention.steps else ["softmax"]
        steps = ", ".join([*attention.steps, *softmax, "weighted sum"])
        if len(set(names)) == 1:
            return f"self-attention{heads}{'' if attention.read[0] == main else f' of {names[0]}'}: {steps}"
        return f"attention{heads}, queries {names[0]}, keys {names[1]}, values {names[2]}: {steps}"

    def _describe_cat(self, index: int, main: int | None) -> str:
        node = self.nodes[index]
        parts = [ref.node for ref in node.get("tensors")]
        along = (
            f" along {name_dimensions(self.layouts[index], [node.get('dim')])}" if len(self.layouts[index]) > 1 else ""
        )
        pools = [part for part in parts if self._is_pooled(part)]
        shown = ["it" if part == main else self.names.name(Ref(part)) for part in parts]
        phrase = f"concatenates {join_words(shown)}{along}"
        if set(parts) == {main}:
            phrase = f"{len(parts)} copies of it side by side{along}"
        if len(pools) > 1:
            self.patterns["a pooling pyramid"] += 1
            return f"{phrase}: a pooling pyramid"
        self.patterns["a concatenation"] += 1
        return phrase

    def _is_pooled(self, index: int) -> bool:
        """Return whether a value comes from a pooling within a few operations."""
        for _ in range(6):
            node = self.nodes[index]
            if any(kind in node.op for kind in _POOLING) or (node.op == "mean" and len(node.get("dim")) > 1):
                return True
            sources = self.sources.get(index, ())
            if len(sources) != 1:
                return False
            index = sources[0]
        return False

    def _describe_binary(self, index: int, node: Node, main: int | None, others: list[int]) -> str:
        operands = [value for name, value in node.arguments if name in ("input", "other")]
        left, right = operands if len(operands) == 2 else (operands[0], None)
        if not others and main is not None:
            if isinstance(left, Ref) and isinstance(right, Ref) and left.node == right.node:
                if left != right:
                    return f"{_COMBINED.get(node.op, node.op)} of both"
                return {"mul": "square", "add": "twice"}.get(node.op, f"{node.op} with itself")
            operand = right if isinstance(left, Ref) and left.node == main else left
            if isinstance(operand, Ref) and node.op == "mul" and (dropped := self._describe_dropping(operand.node)):
                self.patterns["stochastic depth"] += 1
                return dropped
            shown = self.names.name_origin(operand.node, index) if isinstance(operand, Ref) else format_number(operand)
            return self._describe_operand(node, shown, first=operand is left and node.op not in ("add", "mul"))
        if main is None:
            return f"{_COMBINED.get(node.op, node.op)} of {self.names.name_all(others, index)}"
        shown = self.names.name_all(others[:1], index)
        if node.op == "add":
            continues = self.flow.leads_to(others[0], main)
            same_shape = len({self.graph.type_of(ref).shape for ref in node.inputs}) == 1
            if not same_shape or (not continues and not self.flow.leads_to(main, others[0])):
                return f"adds {shown}"
            self.patterns["a residual"] += 1
            return f"{'adds' if continues else 'added to'} {shown}{_RESIDUAL}"
        if node.op == "mul":
            for gate, phrase in ((main, f"multiplies {shown}"), (others[0], f"times {shown}")):
                if self._is_gate(gate):
                    self.patterns["a gate"] += 1
                    return f"{phrase}: a gate{self._describe_extent(gate, index)}"
            return f"times {shown}"
        if node.op == "matmul":
            is_left = isinstance(left, Ref) and left.node == main
            return f"product of matrices, {f'it with {shown}' if is_left else f'{shown} with it'}"
        return self._describe_operand(node, shown, first=isinstance(left, Ref) and left.node == others[0])

    def _describe_dropping(self, index: int) -> str:
        """Describe a factor that is drawn once for each sample, as in stochastic depth; else an empty text."""
        node = self.nodes[index]
        while node.op in ("div", "mul", "cast") and len(node.inputs) == 1:
            node = self.nodes[node.inputs[0].node]
        chance, shape = node.get("p"), node.outputs[0].shape
        if node.op != "bernoulli" or not isinstance(chance, float) or max(shape[1:], default=1) > 1:
            return ""
        return f"whole samples dropped with probability {1 - chance:.3g}"

    def _describe_extent(self, gate: int, index: int) -> str:
        """Describe which elements share one value of the gate."""
        while self.nodes[gate].op == "expand":
            gate = self.nodes[gate].inputs[0].node
        shape, whole = self.nodes[gate].outputs[0].shape, self.nodes[index].outputs[0].shape
        if len(shape) != len(whole):
            return ""
        spread = any(size > 1 and part == 1 for size, part in zip(whole[1:], shape[1:], strict=True))
        return name_extent(self.layouts[index], (1, *shape[1:])) if spread else ""

    def _describe_operand(self, node: Node, shown: str, *, first: bool) -> str:
        if first:
            return f"{shown} {OPERATORS[node.op] if node.op in ('sub', 'div') else node.op} it"
        return f"{OPERATORS.get(node.op, node.op)} {shown}"

    # --- chains and sentences --------------------------------------------------------------------------------------

    def _list_chains(self) -> list[_Chain]:
        by_end: dict[int, _Chain] = {}
        chains: list[_Chain] = []
        for index in self.live:
            if index in self.hidden:
                continue
            main = self._find_main(index)
            chain = by_end.get(main) if main is not None and self.users[main] == 1 else None
            if chain is None or self._starts_stage(index, chain):
                chains.append(chain := _Chain([]))
            phrase = self._describe_node(index, main)
            chain.nodes.append(index)
            self._add_phrase(chain, index, phrase)
            by_end[index] = chain
        return chains

    def _add_phrase(self, chain: _Chain, index: int, phrase: str) -> None:
        """Add a phrase; of views in a row only the last shape is named, and nothing if it is the first again."""
        node = self.nodes[index]
        is_view = phrase.startswith(RESHAPED) or (not phrase and node.op == "reshape")
        chain.viewed = (chain.viewed or self.graph.type_of(node.inputs[0]).shape) if is_view else ()
        if chain.phrases and chain.phrases[-1].startswith(RESHAPED) and is_view:
            chain.phrases.pop()
            phrase = (
                "" if node.outputs[0].shape == chain.viewed else phrase or RESHAPED + self.names.format_shape(index)
            )
        if phrase:
            chain.phrases.append(phrase)

    def _starts_stage(self, index: int, chain: _Chain) -> bool:
        """Return whether an operation starts a new stage: one with weights after an added residual."""
        ends = any(phrase.endswith(_RESIDUAL) for phrase in chain.phrases)
        return ends and any(self.nodes[ref.node].op == "parameter" for ref in self.nodes[index].inputs)

    def _find_main(self, index: int) -> int | None:
        """Return the input whose chain a node continues: its only input, or the latest that no other node reads."""
        sources = self.sources[index]
        if len(sources) == 1:
            return sources[0]
        only_here = [source for source in sources if self.users[source] == 1 and self.nodes[source].op != "input"]
        if not only_here or index in self.attention or (self.nodes[index].op == "cat" and len(sources) > 2):
            return None
        return max(only_here)

    def list_phrases(self) -> list[str]:
        """Return all phrases, without the values that they refer to, and the dropout inside attentions."""
        phrases = [phrase for chain in self.chains for phrase in chain.phrases]
        inside = [node.get("dropout_p") for node in self.nodes if node.op == "attention" and node.get("dropout_p")]
        inside += [self.nodes[index].get("p") for index in self.hidden if self.nodes[index].op == "dropout"]
        phrases += [f"dropout of {rate:g} inside an attention" for rate in sorted(inside)]
        return [remove_marks(_MARK.sub("another value", phrase)) for phrase in phrases]

    def sentences(self) -> list[str]:
        """Return one sentence per chain, in order, with repeats folded."""
        if len(self.live) > MAX_STEPS:
            return [f"{len(self.live):,} operations, too many to tell."]
        chains = sorted(self.chains, key=lambda chain: chain.nodes[-1])  # so that references point back
        aliases: dict[int, int] = {}  # nodes of chains without phrases -> the node whose value they pass on
        kept: list[_Chain] = []
        ends: dict[int, int] = {}  # node index at the end of a described chain -> its sentence number
        for chain in chains:
            first = self.sources[chain.nodes[0]]
            if not chain.phrases and len(first) == 1:
                aliases |= dict.fromkeys(chain.nodes, first[0])
                continue
            ends |= dict.fromkeys(chain.nodes, len(kept))
            kept.append(chain)

        def refer(index: int, here: int) -> str:
            while index in aliases:
                index = aliases[index]
            if index in ends:
                return f"[{ends[index] - here}]"
            if self.nodes[index].op == "input":
                return "the input" if len(self.inputs) == 1 else f"input {self.inputs.index(index) + 1}"
            return self.names.name_origin(index)

        texts = [self._write_sentence(chain, number, refer) for number, chain in enumerate(kept)]
        outputs = [self.names.name(ref) for ref in self.graph.outputs]
        if not texts and len(outputs) == 1:
            return [f"returns {refer(self.graph.outputs[0].node, 0)}."]
        if 1 < len(outputs) <= _RETURNED and texts:
            names = [_MARK.sub(lambda match: refer(int(match[1]), len(kept)), name) for name in outputs]
            texts.append(f"returns {join_words(names)}")
        return number_sentences(fold_sentences(texts))

    def _write_sentence(self, chain: _Chain, number: int, refer: Callable[[int, int], str]) -> str:
        first = chain.nodes[0]
        sources = self.sources[first]
        phrases = fold_phrases(chain.phrases)
        if len(phrases) > _PHRASES:
            phrases = [*phrases[: _PHRASES - 1], f"{len(phrases) - _PHRASES + 1} further steps"]
        text = "; ".join(phrases)
        if len(sources) == 1:
            text = f"from {self.names.name_all(sources, first) or f'{{{sources[0]}}}'}: {text}"
        text = _MARK.sub(lambda match: refer(int(match[1]), number), text)
        return text.replace(f"{_AS_BEFORE}[0]", ", with the same weights again")
