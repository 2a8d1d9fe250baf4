"""Draft the kinds about a single block: `describe`, `specify` and `shapes` restate its facts; `write` has its code.

They contain no passage of code unless the code is the whole answer and its licenses allow that.
"""

import ast
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extract.chat.verbalization import (
    LAYERS,
    SYSTEMS,
    and_list,
    argument_words,
    case_sentence,
    computing_sentences,
    describe_kind,
    gradient_words,
    init_words,
    input_words,
    layer_sentence,
    mode_sentences,
    name_words,
    output_words,
    parameter_words,
    scaling_phrase,
    shape_sentence,
    shape_words,
    split_shape,
    tells_all,
)
from extract.resolve.requirements import list_imports
from extract.specs.make import find_repeat, strip_header
from extract.specs.splits import SplitAssignment
from lemur_core.files.markdown import plural
from lemur_core.similarity.tokens import split_tokens
from manifests.conversations.conversation import Draft, Sampler, Skipped, Subject, fence
from manifests.provenance.licenses import NOASSERTION
from manifests.provenance.parts import Parts, find_blocked_blocks, read_parts
from manifests.records import Case, Spec

#: Fields of a design in the order in which they are stated.
FACTS: tuple[str, ...] = (
    "name",
    "category",
    "constructor",
    "forward",
    "arguments",
    "layout",
    "keeps_shape",
    "downsampling",
    "changes_channels",
    "cases",
)
FACTS += ("parameters", "layers", "train_differs", "identity_in_eval")

#: The keys of an answer to `specify`, with what a reader must know to fill them.
KEYS = {
    "name": "text",
    "layout": "text",
    "keeps_shape": "true if the output has the shape of the first input, else false",
    "downsampling": "size of the input divided by that of the output, a number such as 2.0 or 1.0",
    "changes_channels": "true if the output has another number of channels than the input, else false",
    "cases": 'a list with one object, `{"inputs": {name: "type shape"}, "outputs": ["type shape"]}`',
    "parameters": "an integer",
    "built_with": "the value of each argument that is named, as text",
    "layers": "the number of modules of each class",
    "train_differs": "true if train and eval mode give different outputs",
}

_DESCRIBE = (
    "Describe this module.",
    "What does the following module do, and how large is it?",
    "Here is the spec of a PyTorch module. Put its facts into sentences.",
    "Describe the design behind these facts.",
    "Put this spec into words for someone who has to choose a module.",
    "Explain this module to a colleague who cannot read the JSON.",
)
_SPECIFY = (
    "Write what these requirements say as one JSON object with these keys:",
    "I need a module as described below. Give me its spec as JSON with these keys:",
    "Turn the requirement below into a structured spec, one JSON object with these keys:",
    "Which spec says the same? Answer as one JSON object with these keys:",
)
_SHAPES = (
    "What is the shape of the output?",
    "Which shape comes out?",
    "Give the output shape for this input.",
    "Tell me the shape of what it returns.",
)
_WRITE = (
    "Write a self-contained PyTorch file whose class `{name}` meets these requirements.",
    "Implement `{name}` in one closed file:",
    "I need the code of a module `{name}` as follows, in one file that needs no other.",
    "Give me a Python file that defines the module `{name}`:",
)

#: Values of arguments of which only the kind is stated.
_NOT_SPELLED_OUT = re.compile(r" (SimpleNamespace|a function|computed|(sequence|mapping|text) of \d+ \w+)(,| and |$)")
_MAX_TENSORS = 12  # maximum number of output tensors
_FREE = "Fixed values that are not given are yours to choose."


@dataclass(frozen=True, slots=True)
class ChatBlock:
    """A block with its spec, its place in the splits, and its code, which answers must not repeat.

    `minimized` is its minimized form, used as the answer when code is requested; without one, the whole code is used.
    """

    spec: Spec
    place: SplitAssignment
    code: str
    minimized: str | None = None

    @property
    def subject(self) -> Subject:
        """The subject of its conversations."""
        names = ("block", "source", "path", "start_line", "end_line", "swhid", "license")
        columns = {name: getattr(self.spec, name) for name in names}
        drop_columns = {"block": self.spec.block, "source": self.spec.source}
        return Subject(self.spec.block, self.spec.block, self.place.split, columns, drop_columns)


def repeats(texts: Iterable[str], code: str) -> list[bool]:
    """Return for each text whether it shares eight consecutive tokens with the code, ignoring the code's header."""
    source = split_tokens(strip_header(code))
    return [find_repeat(text, source) is not None for text in texts]


def text_to_check(kind: str, user: str, assistant: str) -> str:
    """Return the part of a conversation that must not repeat code: everything, unless the answer is the code."""
    return user if kind == "write" else f"{user}\n{assistant}"


@dataclass(frozen=True, slots=True)
class CodeRights:
    """Rights to redistribute code, by the same rules as publishing, and the notices that go with it."""

    blocked: Mapping[str, str] = field(default_factory=dict)  # block -> licenses that forbid redistribution
    parts: Parts = field(default_factory=lambda: Parts({}, {}))

    def notice(self, spec: Spec) -> str:
        """Return the origin and licenses of a block's code in one line."""
        lines = f"lines {spec.start_line}-{spec.end_line}"
        origin = f"{spec.name}: {spec.source} {spec.path}, {lines}, {spec.swhid}, {spec.license}"
        further = [
            f"{name} ({self.parts.source_licenses.get(name, NOASSERTION)})"
            for name in self.parts.block_sources.get(spec.block, ())
            if name != spec.source
        ]
        also = f"; with definitions from {', '.join(further)}" if further else ""
        return f"{origin}{also}; changed: imports resolved and definitions brought together"


def read_rights(folder: Path) -> CodeRights:
    """Read the rights to the code in a folder whose table and requirements are already written.

    Raises: UserError if they cannot be read.
    """
    parts = read_parts(folder)
    return CodeRights({block: licenses for block, (_, licenses) in find_blocked_blocks(folder, parts).items()}, parts)


def make_draft(
    sampler: Sampler, user: str, assistant: str, others: Sequence[ChatBlock] = (), notice: str | None = None
) -> Draft:
    """Return a draft with a random system prompt.

    Args:
        others: further blocks that it mentions.
        notice: notice for the code in the answer.
    """
    columns = {"others": [other.spec.block for other in others], "notice": notice}
    return Draft(sampler.choice(SYSTEMS, "system"), user, assistant, columns=columns)


def skip_not_run(spec: Spec) -> Skipped:
    """Return the skip for a block that did not run."""
    return Skipped("not_run", f"it reached the level {spec.level}")


def describe(block: ChatBlock, sampler: Sampler) -> Draft | Skipped:
    """Draft the facts of a design and the operations of its graph, answered with the same in sentences."""
    spec = block.spec
    if spec.parameters is None:
        return Skipped("not_constructed", f"it reached the level {spec.level}")
    facts = spec_facts(spec, FACTS) | ({"finite_gradients_reach": words} if (words := gradient_words(spec)) else {})
    facts |= {"computes": spec.algorithm.sentences} if spec.algorithm else {}
    user = [sampler.choice(_DESCRIBE, "question"), "", fence(_format_json(facts), "json")]
    return make_draft(sampler, "\n".join(user), " ".join(_sentences(spec, sampler)))


def specify(block: ChatBlock, sampler: Sampler) -> Draft | Skipped:
    """Draft requirements, answered with the fields that they state as JSON; the request says how a field is written."""
    spec = block.spec
    if not spec.cases:
        return skip_not_run(spec)
    none = [
        item.name for item in spec.forward if item.default is None and spec.cases[0].inputs.get(item.name) == "none"
    ]
    if none:
        return Skipped(
            "not_stated", f"it ran without {and_list(none)}, which `forward` requires: what it is for is hidden"
        )
    lines, names = _requirement(spec)
    facts = spec_facts(spec, [name for name in KEYS if name in names])
    facts |= {"cases": facts["cases"][:1]} if "cases" in facts else {}
    keys = [f"- `{name}`: {KEYS[name]}" for name in facts]
    text = sampler.choice((_as_list(lines), [" ".join(lines)]), "form")
    user = [sampler.choice(_SPECIFY, "question"), "", *keys, "", "The module:", "", *text]
    return make_draft(sampler, "\n".join(user), fence(_format_json(facts), "json"))


def shapes(block: ChatBlock, sampler: Sampler) -> Draft | Skipped:
    """Draft one observed call without its result, answered with the result; other calls are stated in full.

    Skipped unless the result follows: from a call that differs in its batch alone, from the operations of the graph,
    or from what the module does to any shape.
    """
    spec = block.spec
    if not spec.cases:
        return skip_not_run(spec)
    if len(spec.cases) == 1:
        return Skipped("no_other_call", "only one call was observed, from which no other shape follows")
    batched = [case for case in spec.cases if any(_differ_in_batch(case, other) for other in spec.cases)]
    scales = len(spec.cases[0].outputs) == 1 and not (scaling_phrase(spec) or "roughly").startswith("roughly")
    queries = list(spec.cases) if tells_all(spec) or spec.keeps_shape or scales else batched
    if not queries:
        return Skipped("no_rule", "neither its operations nor another call decide which shape comes out")
    # A question about another size tells more than one about another batch, above all if the shape changes.
    resized = [case for case in queries if case not in batched]
    query_case = sampler.choice(queries if spec.keeps_shape or not resized else resized, "case")
    if not query_case.outputs or len(query_case.outputs) > _MAX_TENSORS:
        number = plural(len(query_case.outputs), "tensor")
        return Skipped("no_shape", f"{number} came out; 1 to {_MAX_TENSORS} can be stated")
    others = [case for case in spec.cases if case is not query_case]
    arguments = init_words(spec)
    user = [f"{name_words(spec)}, is built {f'with {arguments}' if arguments else 'without arguments'}."]
    user += [*layer_sentence(spec), *computing_sentences(spec), *([] if tells_all(spec) else shape_sentence(spec))]
    user += [case_sentence(spec, case) for case in others]
    user.append(f"It is called with {input_words(query_case)}. {sampler.choice(_SHAPES, 'question')}")
    output = output_words(query_case)
    forms = (f"The output is {output}.", f"It returns {output}.", f"{output[0].upper()}{output[1:]}.")
    return make_draft(sampler, "\n".join(user), sampler.choice(forms, "answer"))


def _differ_in_batch(case: Case, other: Case) -> bool:
    """Return True if two calls have equal inputs except for the first size of tensors."""

    def key(one: Case) -> list[tuple[str, object]]:
        return [(name, split_shape(text)[1:] or text) for name, text in one.inputs.items()]

    return case is not other and key(case) == key(other)


def write(block: ChatBlock, sampler: Sampler, rights: CodeRights) -> Draft | Skipped:
    """Draft requirements from the spec's facts, answered with the minimized form; its header is in the columns.

    Skipped unless every part of the code may be redistributed, and the requirements say all that it computes.
    """
    spec = block.spec
    if spec.block in rights.blocked:
        return Skipped("license", rights.blocked[spec.block])
    if not spec.cases:
        return skip_not_run(spec)
    if not tells_all(spec):
        return Skipped("not_stated", "its sentences do not say all that it computes, so none could write it from them")
    if _NOT_SPELLED_OUT.search(init_words(spec)):
        return Skipped("not_stated", "an argument is an object whose values are not stated")
    request = sampler.choice(_WRITE, "question").format(name=spec.name)
    lines, _ = _requirement(spec)
    for name, label in (("constructor", "constructor"), ("forward", "`forward`")):
        if words := argument_words(getattr(spec, name)):
            lines.append(f"Its {label} takes {words}.")
    lines += computing_sentences(spec)
    lines += [_FREE] if any("fixed" in line for line in lines) else []
    code = strip_header(block.minimized or block.code).lstrip("\n")
    imports = {name.partition(".")[0] for name, _ in list_imports(ast.parse(code))} - sys.stdlib_module_names
    if further := sorted(imports - {"torch"}):
        lines.append(f"Besides torch it imports {and_list([f'`{name}`' for name in further])}.")
    return make_draft(sampler, "\n".join([request, "", *_as_list(lines)]), fence(code), notice=rights.notice(spec))


def spec_facts(spec: Spec, names: Sequence[str]) -> dict[str, Any]:
    """Return the named fields of a spec that are neither null nor empty, without null fields of nested records.

    `built_with` are the constructor arguments that worked; no layers are a fact, too.
    """
    facts = spec.model_dump(mode="json")
    for group in ("constructor", "forward"):
        facts[group] = [{key: value for key, value in item.items() if value is not None} for item in facts[group]]
    facts["built_with"] = spec.arguments.init if spec.arguments else {}
    return {
        name: facts[name]
        for name in names
        if facts[name] not in (None, [], {}, "") or (name == "layers" and facts[name] == {})
    }


def _format_json(facts: Mapping[str, Any]) -> str:
    """Return facts as JSON, one field per line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items()]
    return "\n".join(["{", *(f"{line}," for line in lines[:-1]), *lines[-1:], "}"])


def _as_list(lines: Iterable[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _requirement(spec: Spec) -> tuple[list[str], set[str]]:
    """Return the requirements as sentences, and the keys of `KEYS` that they decide.

    Args: spec: the spec of a block that ran, i.e. with cases.
    """
    lines = [f"It is {name_words(spec)}.", *(f"It {phrase}." for phrase in shape_words(spec))]
    lines.append(case_sentence(spec, spec.cases[0]))
    names = {"name", "layout", "changes_channels"}
    if len(spec.cases[0].outputs) == 1:
        names.add("keeps_shape")
    if spec.keeps_shape or scaling_phrase(spec) is not None:
        names.add("downsampling")
    if not any(name.startswith("*") for name in spec.cases[0].inputs):
        names.add("cases")
    if words := parameter_words(spec):
        lines.append(f"It {words}.")
        names |= {"parameters", "built_with"}
    lines += [*layer_sentence(spec), *mode_sentences(spec)]
    names.add("train_differs")
    # Not all kinds of layers are stated if there are many.
    names |= {"layers"} if len(spec.layers or {}) <= LAYERS else set()
    return lines, names


def _sentences(spec: Spec, sampler: Sampler) -> list[str]:
    """Return the observations in sentences, what belongs together in one group, the groups in random order."""
    name, kind = f"`{spec.name}`", describe_kind(spec)
    head = sampler.choice((f"This is {name}, {kind}.", f"{name} is {kind}.", f"{name}: {kind}."), "head")
    seen = [*shape_sentence(spec), *(case_sentence(spec, case) for case in spec.cases[:1]), *mode_sentences(spec)]
    seen += [f"Finite gradients reach {words}."] if (words := gradient_words(spec)) else []
    calls = []
    if words := argument_words(spec.constructor):
        calls.append(f"{sampler.choice(('Its constructor takes', 'It is built from'), 'constructor')} {words}.")
    if words := argument_words(spec.forward):
        calls.append(f"Its `forward` takes {words}.")
    groups = [seen, [f"It {parameter_words(spec)}.", *layer_sentence(spec)], calls, computing_sentences(spec)]
    return [head, *(sentence for group in sampler.shuffle(groups, "order") for sentence in group)]
