"""Describe a graph in sentences: its operations in order, and the patterns that they form, by structure alone.

A sentence follows one value through operations as long as nothing else reads it; where values branch or merge, a new
sentence begins, and sentences refer to each other by number. Patterns are residuals, gates, attention, pooling
pyramids, normalizations, splits and concatenations. Repeats are folded, and there are at most `MAX_SENTENCES`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lemur_core.describe.attention import MAX_STEPS, RESHAPING, DataFlow, find_attention
from lemur_core.describe.folding import fold_phrases, fold_sentences, number_sentences
from lemur_core.describe.layouts import layouts
from lemur_core.describe.sentences import describe, dimensions, find_origin, sizes
from lemur_core.graphs.graph import Argument, Graph, Node, Ref

_IN_TRAINING = 4  # maximum sentences about train mode
_RETURNED = 8  # maximum values that are named one by one
_PHRASES = 14  # maximum phrases per sentence

_OPENING = frozenset({"sigmoid", "hardsigmoid", "tanh", "_softmax", "relu6"})
_BOUNDED = {"clamp": ("min", "max"), "hardtanh": ("min_val", "max_val")}
_NORMS = {
    "batch_norm": "batch normalisation",
    "layer_norm": "layer normalisation",
    "group_norm": "group normalisation",
    "instance_norm": "instance normalisation",
    "rms_norm": "root-mean-square normalisation",
}
_TOGETHER = {"matmul": "product of matrices", "mul": "product", "add": "sum", "sub": "difference", "div": "quotient"}
_RESIDUAL = ": a residual"
_POOLING = ("max_pool", "avg_pool", "adaptive")


@dataclass(frozen=True, slots=True)
class GraphDescription:
    """The description of a graph. `patterns` are its patterns with how often each occurs, most frequent first."""

    sentences: tuple[str, ...]
    patterns: tuple[str, ...]


@dataclass(slots=True)
class _Chain:
    """Operations in a row: the values that it begins with, and its phrases; `{7}` in one names the value of node 7."""

    places: list[int]
    phrases: list[str] = field(default_factory=list)


def describe_graph(graph: Graph, trained: Graph | None = None) -> GraphDescription:
    """Describe a canonical graph of eval mode, and how that of train mode differs.

    Args: trained: the graph of train mode; None if there is none.
    Returns: the numbered sentences, and the patterns with their counts, the commonest first.
    """
    describer = _Describer(graph)
    sentences = tuple(describer.sentences())  # also counts the patterns
    if trained is not None and trained != graph:
        sentences += tuple(_in_training(sentences, _Describer(trained)))
    counted = sorted(describer.patterns.items(), key=lambda item: (-item[1], item[0]))
    patterns = tuple(name if number == 1 else f"{name}, {number} times" for name, number in counted)
    return GraphDescription(sentences, patterns)


def _in_training(evaluated: Sequence[str], trained: "_Describer") -> list[str]:
    """List the differences in train mode: random operations by name; everything if eval mode is short."""
    sentences = trained.sentences()
    if sentences == list(evaluated):
        return []
    if len(evaluated) < 2 and len(sentences) < _IN_TRAINING:
        return [f"In train mode: {sentence}" for sentence in sentences]
    drawn = {describe(trained.graph, place, trained.layouts) for place in trained.live if _draws(trained.nodes[place])}
    return [f"In train mode also {_and(sorted(drawn))}."] if drawn else ["Train mode goes another way."]


def _draws(node: Node) -> bool:
    return node.get("draw") is not None


class _Describer:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self.layouts = layouts(graph)
        self.patterns: Counter[str] = Counter()
        self.flow = DataFlow(graph)
        self.live, self.reached = self.flow.live, self.flow.reached
        self.attention = find_attention(self.flow)
        self.hidden = {place for attention in self.attention.values() for place in attention.within}
        self.sources = {place: self._find_sources(place) for place in self.live}
        self.users: Counter[int] = Counter(
            source for place in self.live if place not in self.hidden for source in self.sources[place]
        )
        # A returned value has one more reader, so no chain runs past it.
        for ref in graph.outputs:
            self.users[ref.node] += 1
        self.inputs = [place for place, node in enumerate(self.nodes) if node.op == "input"]

    def _find_sources(self, place: int) -> list[int]:
        """Return the distinct values that an operation reads; for attention: queries, keys, values."""
        attention = self.attention.get(place)
        read = attention.read if attention else [ref.node for ref in self.nodes[place].inputs]
        # Its further values belong to the backward computation.
        if self.nodes[place].op == "custom_gradient":
            read = read[:1]
        return [source for source in dict.fromkeys(read) if source in self.reached]

    # --- patterns --------------------------------------------------------------------------------------------------

    def _is_gate(self, place: int) -> bool:
        """Return whether a value is a gate: bounded, by a sigmoid or similar."""
        while self.nodes[place].op in RESHAPING | {"div", "mul"} and len(self.sources.get(place, ())) == 1:
            place = self.sources[place][0]
        node = self.nodes[place]
        if node.op in _BOUNDED:
            low, high = (node.get(name) for name in _BOUNDED[node.op])
            return low == 0 and high is not None
        return node.op in _OPENING

    # --- phrases ---------------------------------------------------------------------------------------------------

    def _phrase(self, place: int, main: int | None) -> str:
        """Describe what a node does with the value of its chain.

        Args: main: that value; None if the chain begins with several.
        """
        node = self.nodes[place]
        if place in self.attention:
            return self._attention_phrase(place, main)
        if node.op in _NORMS:
            self.patterns[_NORMS[node.op]] += 1
        if node.op in ("stop_gradient", "custom_gradient", "roll"):
            name = {"stop_gradient": "a stopped gradient", "custom_gradient": "a gradient of its own"}.get(node.op)
            self.patterns[name or "a roll"] += 1
        others = [source for source in self.sources[place] if source != main]
        if node.op == "cat":
            return self._cat(place, main)
        if node.op == "where":
            chosen = [value for value in (node.get("input"), node.get("other")) if value is not None]
            names = ["it" if isinstance(v, Ref) and v.node == main else self._name_value(v) for v in chosen]
            decides = node.get("condition").node
            return f"{' or '.join(names)}, as {'it' if decides == main else self._name_value(Ref(decides))} says"
        if node.op in ("add", "sub", "mul", "div", "maximum", "minimum", "matmul"):
            return self._binary(place, node, main, others)
        phrase = describe(self.graph, place, self.layouts)
        return f"{phrase}, with {_list_references(others)}" if others and main is not None and phrase else phrase

    def _attention_phrase(self, place: int, main: int | None) -> str:
        attention = self.attention[place]
        self.patterns["attention"] += 1
        heads = f", ‹{attention.heads}› heads" if attention.heads and attention.heads > 1 else ""
        names = [f"{{{source}}}" if source in self.reached else self._name_origin(source) for source in attention.read]
        steps = ", ".join(
            [*(attention.steps if "softmax" in attention.steps else [*attention.steps, "softmax"]), "weighted sum"]
        )
        if len(set(names)) == 1:
            return f"self-attention{heads}{'' if attention.read[0] == main else f' of {names[0]}'}: {steps}"
        return f"attention{heads}, queries {names[0]}, keys {names[1]}, values {names[2]}: {steps}"

    def _cat(self, place: int, main: int | None) -> str:
        node = self.nodes[place]
        parts = [ref.node for ref in node.get("tensors")]
        along = dimensions(self.layouts[place], [node.get("dim")])
        pools = [part for part in parts if self._is_pooled(part)]
        names = {part: f"{{{part}}}" if part in self.reached else self._name_origin(part) for part in parts}
        if main is not None:
            names[main] = "it"
        phrase = f"concatenates {_and([names[part] for part in parts])} along {along}"
        if set(parts) == {main}:
            phrase = f"{len(parts)} copies of it side by side along {along}"
        if len(pools) > 1:
            self.patterns["a pooling pyramid"] += 1
            return f"{phrase}: a pooling pyramid"
        self.patterns["a concatenation"] += 1
        return phrase

    def _is_pooled(self, place: int) -> bool:
        """Return whether a value comes from a pooling within a few operations."""
        for _ in range(6):
            node = self.nodes[place]
            if any(kind in node.op for kind in _POOLING) or (node.op == "mean" and len(node.get("dim")) > 1):
                return True
            sources = self.sources.get(place, ())
            if len(sources) != 1:
                return False
            place = sources[0]
        return False

    def _binary(self, place: int, node: Node, main: int | None, others: list[int]) -> str:
        one, other = _operands(node)
        if not others and main is not None:
            if isinstance(one, Ref) and isinstance(other, Ref) and one.node == other.node:
                return {"mul": "square", "add": "twice"}.get(node.op, f"{node.op} with itself")
            operand = other if isinstance(one, Ref) and one.node == main else one
            shown = self._name_origin(operand.node) if isinstance(operand, Ref) else _number(operand)
            return self._with(node, shown, first=operand is one and node.op not in ("add", "mul"))
        if main is None:
            return f"{_TOGETHER.get(node.op, node.op)} of {_list_references(others)}"
        shown = f"{{{others[0]}}}"
        if node.op == "add":
            if self.flow.leads_to(others[0], main):
                self.patterns["a residual"] += 1
                return f"adds {shown}{_RESIDUAL}"
            if self.flow.leads_to(main, others[0]):
                self.patterns["a residual"] += 1
                return f"added to {shown}{_RESIDUAL}"
            return f"adds {shown}"
        if node.op == "mul":
            for gate, words in ((main, f"multiplies {shown}"), (others[0], f"times {shown}")):
                if self._is_gate(gate):
                    self.patterns["a gate"] += 1
                    return f"{words}: a gate{self._describe_extent(gate, place)}"
            return f"times {shown}"
        if node.op == "matmul":
            return f"product of matrices with {shown}"
        return self._with(node, shown, first=isinstance(one, Ref) and one.node == others[0])

    def _describe_extent(self, gate: int, place: int) -> str:
        """Describe the extent of one value of a gate."""
        shape, whole = self.nodes[gate].outputs[0].shape, self.nodes[place].outputs[0].shape
        if len(shape) != len(whole):
            return ""
        kept = [dim for dim in range(1, len(whole)) if whole[dim] > 1 and shape[dim] == whole[dim]]
        spread = [dim for dim in range(1, len(whole)) if whole[dim] > 1 and shape[dim] == 1]
        if not spread or not kept:
            return ""
        letters = "".join(self.layouts[place][dim] for dim in kept)
        return " for each channel" if letters == "C" else " for each place" if set(letters) <= set("LDHW") else ""

    def _with(self, node: Node, shown: str, *, first: bool) -> str:
        if first:
            return f"{shown} {'minus' if node.op == 'sub' else 'divided by' if node.op == 'div' else node.op} it"
        words = {"add": "plus", "sub": "minus", "mul": "times", "div": "divided by", "matmul": "product with"}
        words |= {"maximum": "the larger of it and", "minimum": "the smaller of it and"}
        return f"{words.get(node.op, node.op)} {shown}"

    def _name_value(self, value: Argument) -> str:
        if not isinstance(value, Ref):
            return _number(value)
        return f"{{{value.node}}}" if value.node in self.reached else self._name_origin(value.node)

    def _name_origin(self, place: int) -> str:
        """Describe a value that does not depend on an input."""
        node = self.nodes[place]
        shape = sizes(node.outputs[0].shape) if node.outputs[0].shape else "scalar"
        if node.op in ("constant", "full") and isinstance(node.get("value"), int | float):
            return _number(node.get("value"))
        return f"a {find_origin(self.graph, place)} ‹{shape}›"

    # --- chains and sentences --------------------------------------------------------------------------------------

    def _chains(self) -> list[_Chain]:
        by_end: dict[int, _Chain] = {}
        chains: list[_Chain] = []
        for place in self.live:
            if place in self.hidden:
                continue
            main = self._main(place)
            if main is not None and main in by_end and self.users[main] == 1 and not self._is_new(place, by_end[main]):
                chain = by_end.pop(main)
            else:
                chains.append(chain := _Chain([]))
            phrase = self._phrase(place, main)
            chain.places.append(place)
            if phrase:
                chain.phrases.append(phrase)
            by_end[place] = chain
        return chains

    def _is_new(self, place: int, chain: _Chain) -> bool:
        """Return whether an operation starts a new stage: a residual was added, and weights follow again."""
        ends = any(phrase.endswith(_RESIDUAL) for phrase in chain.phrases)
        return ends and any(self.nodes[ref.node].op == "parameter" for ref in self.nodes[place].inputs)

    def _main(self, place: int) -> int | None:
        """Return the input whose chain a node continues: its only one, or the latest one that only this node reads."""
        sources = self.sources[place]
        if len(sources) == 1:
            return sources[0]
        alone = [source for source in sources if self.users[source] == 1 and self.nodes[source].op != "input"]
        if not alone or place in self.attention or (self.nodes[place].op == "cat" and len(sources) > 2):
            return None
        return max(alone)

    def sentences(self) -> list[str]:
        """Return one sentence per chain, in order, with repeats folded."""
        if len(self.live) > MAX_STEPS:
            return [f"{len(self.live):,} operations, too many to tell."]
        chains = sorted(self._chains(), key=lambda chain: chain.places[-1])  # so that references point back
        aliases: dict[int, int] = {}  # chains without anything worth describing: their value is that of another
        kept: list[_Chain] = []
        ends: dict[int, int] = {}  # node index at the end of a described chain -> its sentence number
        for chain in chains:
            first = self.sources[chain.places[0]]
            if not chain.phrases and len(first) == 1:
                aliases |= dict.fromkeys(chain.places, first[0])
                continue
            ends |= dict.fromkeys(chain.places, len(kept))
            kept.append(chain)

        def origin(place: int) -> int:
            while place in aliases:
                place = aliases[place]
            return place

        def reference(place: int, here: int) -> str:
            place = origin(place)
            if place in ends:
                return f"[{ends[place] - here}]"
            if self.nodes[place].op == "input":
                return "the input" if len(self.inputs) == 1 else f"input {self.inputs.index(place) + 1}"
            return self._name_origin(place)

        texts = [self._sentence(chain, number, reference) for number, chain in enumerate(kept)]
        outputs = [ref.node for ref in self.graph.outputs]
        if not texts and len(outputs) == 1:
            return [f"returns {reference(outputs[0], 0)}."]
        if 1 < len(outputs) <= _RETURNED and texts:
            texts.append(f"returns {_and([reference(place, len(kept)) for place in outputs])}")
        return number_sentences(fold_sentences(texts))

    def _sentence(self, chain: _Chain, number: int, reference: Callable[[int, int], str]) -> str:
        first = chain.places[0]
        sources = self.sources[first]
        phrases = fold_phrases(chain.phrases)
        if len(phrases) > _PHRASES:
            phrases = [*phrases[: _PHRASES - 1], f"{len(phrases) - _PHRASES + 1} further steps"]
        text = "; ".join(phrases)
        for place in sorted(self.reached, reverse=True):
            mark = f"{{{place}}}"
            if mark in text:
                text = text.replace(mark, reference(place, number))
        start = f"from {reference(sources[0], number)}: " if len(sources) == 1 else ""
        return start + text


def _operands(node: Node) -> tuple[Argument, Argument]:
    values = [value for name, value in node.arguments if name in ("input", "other")]
    return (values[0], values[1]) if len(values) == 2 else (values[0], None)


def _number(value: Argument) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "a value"


def _list_references(places: Sequence[int]) -> str:
    return _and([f"{{{place}}}" for place in places])


def _and(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
