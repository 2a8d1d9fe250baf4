"""Describe a graph in sentences: its operations in order, and the patterns that they form, by structure alone.

A sentence follows one value through operations as long as nothing else reads it; where values branch or merge, a new
sentence begins, and sentences refer to each other by number. Patterns are residuals, gates, attention, pooling
pyramids, normalizations, splits and concatenations. Repeats are folded, and there are at most `SENTENCES`.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lemur_core.describe.layouts import layouts
from lemur_core.describe.sentences import describe, dimensions, find_origin, plain, sizes, without_widths
from lemur_core.graphs.graph import LEAVES, Argument, Graph, Node, Ref

SENTENCES = 16
_IN_TRAINING = 4  # maximum sentences about train mode
_RETURNED = 8  # maximum values that are named one by one
_PHRASES = 14  # maximum phrases per sentence
_LONGEST_PERIOD = 12  # maximum period of repeating sentences
_STEPS = 3_000  # larger graphs are only counted

_OPENING = frozenset({"sigmoid", "hardsigmoid", "tanh", "_softmax", "relu6"})
_BOUNDED = {"clamp": ("min", "max"), "hardtanh": ("min_val", "max_val")}
_BETWEEN = frozenset({"reshape", "expand", "permute", "cast", "stop_gradient", "upsample_nearest2d", "slice"})
_SCORED = _BETWEEN | {"mul", "div", "add", "sub", "masked_fill", "where", "clamp", "tanh", "logical_not"}
_NORMS = {
    "batch_norm": "batch normalisation",
    "layer_norm": "layer normalisation",
    "group_norm": "group normalisation",
    "instance_norm": "instance normalisation",
    "rms_norm": "root-mean-square normalisation",
}
_TOGETHER = {"matmul": "product of matrices", "mul": "product", "add": "sum", "sub": "difference", "div": "quotient"}
_REFERENCE = re.compile(r"\[(-?\d+)\]")
_RESIDUAL = ": a residual"
_POOLING = ("max_pool", "avg_pool", "adaptive")

Name = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Told:
    """The description of a graph. `motifs` are its patterns with how often each occurs, most frequent first."""

    sentences: tuple[str, ...]
    motifs: tuple[str, ...]


@dataclass(slots=True)
class _Chain:
    """Operations in a row: the values that it begins with, and its phrases; `{7}` in one names the value of node 7."""

    places: list[int]
    phrases: list[str] = field(default_factory=list)


def tell(graph: Graph, trained: Graph | None = None) -> Told:
    """Describe a canonical graph of eval mode, and how that of train mode differs."""
    describer = _Describer(graph)
    sentences = tuple(describer.sentences())  # also counts the patterns
    if trained is not None and trained != graph:
        sentences += tuple(_in_training(sentences, _Describer(trained)))
    counted = sorted(describer.motifs.items(), key=lambda item: (-item[1], item[0]))
    motifs = tuple(name if number == 1 else f"{name}, {number} times" for name, number in counted)
    return Told(sentences, motifs)


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
        self.motifs: Counter[str] = Counter()
        self.live = self._find_live()
        self.behind = self._ancestors()
        self.attention = self._find_attention()
        self.hidden = {place for attention in self.attention.values() for place in attention.within}
        self.sources = {place: self._find_sources(place) for place in self.live}
        self.users: Counter[int] = Counter(
            source for place in self.live if place not in self.hidden for source in self.sources[place]
        )
        for ref in graph.outputs:
            self.users[ref.node] += 1
        self.inputs = [place for place, node in enumerate(self.nodes) if node.op == "input"]

    # --- dependencies -----------------------------------------------------------------------------------------------

    def _find_live(self) -> list[int]:
        """Return the operations that depend on an input, in order; all operations if there is no input."""
        reached: set[int] = {place for place, node in enumerate(self.nodes) if node.op == "input"}
        whole = not reached
        backward = {place for place, node in enumerate(self.nodes) if node.op == "cotangent"}
        live = []
        for place, node in enumerate(self.nodes):
            if any(ref.node in backward for ref in node.inputs) and node.op != "custom_gradient":
                backward.add(place)  # custom backward code is not described
            elif node.op not in LEAVES and (whole or any(ref.node in reached for ref in node.inputs)):
                reached.add(place)
                live.append(place)
        self.reached = reached
        return live

    def _ancestors(self) -> dict[int, int]:
        """Return the ancestors of each operation, as bits."""
        ancestors: dict[int, int] = {}
        if len(self.live) <= _STEPS:
            for place in sorted(self.reached):
                bits = 1 << place
                for ref in self.nodes[place].inputs:
                    bits |= ancestors.get(ref.node, 0)
                ancestors[place] = bits
        return ancestors

    def _find_sources(self, place: int) -> list[int]:
        """Return the distinct values that an operation reads; for attention: queries, keys, values."""
        attention = self.attention.get(place)
        read = attention.read if attention else [ref.node for ref in self.nodes[place].inputs]
        if self.nodes[place].op == "custom_gradient":
            read = read[:1]
        return [source for source in dict.fromkeys(read) if source in self.reached]

    def _leads_to(self, one: int, other: int) -> bool:
        return one != other and bool(self.behind.get(other, 0) >> one & 1)

    # --- patterns --------------------------------------------------------------------------------------------------

    def _find_attention(self) -> dict[int, "_Attention"]:
        """Return the attentions by the node of their weighted sum."""
        users: dict[int, list[int]] = {}
        for place in self.live:
            for ref in self.nodes[place].inputs:
                users.setdefault(ref.node, []).append(place)
        attentions: dict[int, _Attention] = {}
        for place in self.live:
            node = self.nodes[place]
            if node.op == "attention":
                attentions[place] = self._read_behind(self._from_attention(place, node), users)
            elif node.op == "_softmax":
                match = self._from_softmax(place, users)
                if match is not None:
                    attentions[match[0]] = self._read_behind(match[1], users)
        return attentions

    def _read_behind(self, attention: "_Attention", users: dict[int, list[int]]) -> "_Attention":
        """Trace queries, keys and values back to the values that they are reshaped parts of."""
        whole = self._trace_back(attention, users, _BETWEEN)
        if len(set(whole.read)) == 1:
            return whole
        return self._trace_back(
            attention, users, _BETWEEN - {"slice"}
        )  # slices of several values remain separate values

    def _trace_back(
        self, attention: "_Attention", users: dict[int, list[int]], through: frozenset[str]
    ) -> "_Attention":
        read, within, scales = list(attention.read), set(attention.within), dict.fromkeys(range(3), "")
        before: list[int] = []
        while before != read:  # the parts of one value become free only together
            before = list(read)
            for number, place in enumerate(read):
                node = self.nodes[place]
                factor = node.get("other")
                if not set(users.get(place, ())) <= within | {attention.place} or place not in self.reached:
                    continue
                if node.op == "mul" and isinstance(factor, float):
                    scales[number] = f"scaled by {factor:.4g}"
                elif node.op not in through:
                    continue
                within.add(place)
                read[number] = node.inputs[0].node
        steps = [attention.steps[0], *dict.fromkeys(filter(None, scales.values())), *attention.steps[1:]]
        return _Attention(attention.place, read, steps, attention.heads, frozenset(within))

    def _from_attention(self, place: int, node: Node) -> "_Attention":
        steps = [f"scores scaled by {node.get('scale'):.4g}"]
        if node.get("is_causal"):
            steps.append("only what came before")
        if node.get("attn_mask") is not None:
            steps.append("plus a mask")
        shape = self.graph.type_of(node.get("query")).shape
        heads = shape[1] if len(shape) == 4 else None
        read = [node.get(name).node for name in ("query", "key", "value")]
        return _Attention(place, read, steps, heads, frozenset())

    def _from_softmax(self, softmax: int, users: dict[int, list[int]]) -> "tuple[int, _Attention] | None":
        """Return scores before a softmax and a weighted sum after it, both matrix products of values."""
        within, steps, place = {softmax}, ["softmax"], self.nodes[softmax].inputs[0].node
        while self.nodes[place].op in _SCORED:
            node = self.nodes[place]
            within.add(place)
            step, onward = self._describe_score(node)
            steps += step
            if onward is None or len(users.get(place, ())) != 1:
                return None
            place = onward
        if self.nodes[place].op != "matmul" or not all(ref.node in self.reached for ref in self.nodes[place].inputs):
            return None
        within.add(place)
        scores = place
        place = softmax
        while True:
            following = users.get(place, [])
            if len(following) != 1:
                return None
            before, place = place, following[0]
            if self.nodes[place].op == "matmul":
                break
            if self.nodes[place].op not in _BETWEEN | {"dropout", "mul"}:
                return None
            within.add(place)
        query, key = (ref.node for ref in self.nodes[scores].inputs)
        values = next((ref.node for ref in self.nodes[place].inputs if ref.node != before), key)
        shape = self.nodes[scores].outputs[0].shape
        heads = shape[1] if len(shape) == 4 else None
        read = [query, key, values]
        return place, _Attention(place, read, ["scores", *reversed(steps)], heads, frozenset(within))

    def _describe_score(self, node: Node) -> tuple[list[str], int | None]:
        live = [ref.node for ref in node.inputs if ref.node in self.reached]
        following = live[0] if live else None
        factor = node.get("other")
        if node.op in ("mul", "div") and isinstance(factor, float | int):
            return [f"scaled by {factor if node.op == 'mul' else 1 / factor:.4g}"], following
        if node.op == "add":
            others = [ref.node for ref in node.inputs if ref.node not in self.reached]
            learned = any(find_origin(self.graph, place) == "learned" for place in others)
            return ["plus a learned bias" if learned else "plus a mask"], following
        if node.op in ("masked_fill", "where"):
            return ["masked"], live[-1] if node.op == "where" and live else following
        return [], following

    def _is_gate(self, place: int) -> bool:
        """Return whether a value is a gate: bounded, by a sigmoid or similar."""
        while self.nodes[place].op in _BETWEEN | {"div", "mul"} and len(self.sources.get(place, ())) == 1:
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
            self.motifs[_NORMS[node.op]] += 1
        if node.op in ("stop_gradient", "custom_gradient", "roll"):
            name = {"stop_gradient": "a stopped gradient", "custom_gradient": "a gradient of its own"}.get(node.op)
            self.motifs[name or "a roll"] += 1
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
        self.motifs["attention"] += 1
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
            self.motifs["a pooling pyramid"] += 1
            return f"{phrase}: a pooling pyramid"
        self.motifs["a concatenation"] += 1
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
            if self._leads_to(others[0], main):
                self.motifs["a residual"] += 1
                return f"adds {shown}{_RESIDUAL}"
            if self._leads_to(main, others[0]):
                self.motifs["a residual"] += 1
                return f"added to {shown}{_RESIDUAL}"
            return f"adds {shown}"
        if node.op == "mul":
            for gate, words in ((main, f"multiplies {shown}"), (others[0], f"times {shown}")):
                if self._is_gate(gate):
                    self.motifs["a gate"] += 1
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
        if len(self.live) > _STEPS:
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
        return _finish(_fold_sentences(texts))

    def _sentence(self, chain: _Chain, number: int, reference: Callable[[int, int], str]) -> str:
        first = chain.places[0]
        sources = self.sources[first]
        phrases = _fold_phrases(chain.phrases)
        if len(phrases) > _PHRASES:
            phrases = [*phrases[: _PHRASES - 1], f"{len(phrases) - _PHRASES + 1} further steps"]
        text = "; ".join(phrases)
        for place in sorted(self.reached, reverse=True):
            mark = f"{{{place}}}"
            if mark in text:
                text = text.replace(mark, reference(place, number))
        start = f"from {reference(sources[0], number)}: " if len(sources) == 1 else ""
        return start + text


@dataclass(frozen=True, slots=True)
class _Attention:
    place: int  # index of the weighted sum
    read: list[int]  # queries, keys, values
    steps: list[str]
    heads: int | None
    within: frozenset[int]  # nodes covered by it, except the last


def _operands(node: Node) -> tuple[Argument, Argument]:
    values = [value for name, value in node.arguments if name in ("input", "other")]
    return (values[0], values[1]) if len(values) == 2 else (values[0], None)


def _number(value: Argument) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "a value"


def _list_references(places: Sequence[int]) -> str:
    return _and([f"{{{place}}}" for place in places])


def _and(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _fold_phrases(phrases: Sequence[str]) -> list[str]:
    """Fold each run of repeated phrases; widths may differ."""
    folded = list(phrases)
    for period in range(2, len(folded) // 2 + 1):
        start = 0
        while start + 2 * period <= len(folded):
            key = [without_widths(item) for item in folded[start : start + period]]
            times = 1
            while [without_widths(i) for i in folded[start + times * period : start + (times + 1) * period]] == key:
                times += 1
            once = folded[start : start + period]
            exact = all(folded[start + n * period : start + (n + 1) * period] == once for n in range(times))
            if times > 2 or (times > 1 and exact):
                widths = "" if exact else ", of other widths"
                folded[start : start + times * period] = [f"{times} times{widths} ({', then '.join(once)})"]
            start += 1
    return folded


def _fold_sentences(texts: list[str]) -> list[tuple[int, str]]:
    """Number the sentences; a run that repeats except for widths is folded, with the range of its numbers."""
    folded: list[tuple[int, str]] = []
    start = 0
    keys = [without_widths(text) for text in texts]
    while start < len(texts):
        best, times = 0, 1
        for period in range(1, min(_LONGEST_PERIOD, (len(texts) - start) // 2) + 1):
            count = 1
            while keys[start + count * period : start + (count + 1) * period] == keys[start : start + period]:
                count += 1
            if count > 1 and count * period > best * times:
                best, times = period, count
        if times == 1:
            folded.append((start, texts[start]))
            start += 1
            continue
        folded += [(start + step, texts[start + step]) for step in range(best)]
        same = texts[start : start + best * times] == texts[start : start + best] * times
        shift = (
            ""
            if not any(_REFERENCE.search(text) for text in texts[start : start + best])
            else (f", with numbers {best} further{' each time' if times > 2 else ''}")
        )
        widths = "" if same else ", other widths" if shift else ", with other widths"
        end = start + best * times
        folded.append((start + best, f"{_span(start + best, end)}: as {_span(start, start + best)}{shift}{widths}"))
        start = end
    return folded


def _span(start: int, end: int) -> str:
    if end - start == 1:
        return f"({start + 1})"
    return f"({start + 1}) {'and' if end - start == 2 else 'to'} ({end})"


def _finish(sentences: list[tuple[int, str]]) -> list[str]:
    """Add the numbers to sentences if there are several."""
    shown = sentences if len(sentences) <= SENTENCES else sentences[: SENTENCES - 1]
    lines = []
    for number, text in shown:
        sentence = _REFERENCE.sub(lambda match, here=number: f"({here + int(match[1]) + 1})", text)  # type: ignore[misc]
        prefix = f"({number + 1}) " if len(sentences) > 1 and not sentence.startswith("(") else ""
        lines.append(prefix + plain(sentence) + ".")
    if len(sentences) > len(shown):
        lines.append(f"And {len(sentences) - len(shown)} further sentences.")
    return lines
