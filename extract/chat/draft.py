"""Draft the kinds about a single block: `describe`, `specify` and `shapes` restate its facts; `write` has its code.

They contain no passage of code unless the code is the whole answer and its licenses allow that.
"""

import json
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
    gradient_sentence,
    init_words,
    input_words,
    layer_sentence,
    mode_sentences,
    name_words,
    output_words,
    parameter_words,
    shape_sentence,
    shape_words,
)
from extract.specs.make import find_repeat, strip_header
from extract.specs.splits import SplitAssignment
from lemur_core.files.markdown import plural
from lemur_core.similarity.tokens import split_tokens
from manifests.conversations.conversation import Draft, Sampler, Skipped, Subject, fence
from manifests.provenance.licenses import NOASSERTION
from manifests.provenance.parts import Parts, find_blocked_blocks, read_parts
from manifests.records import Spec

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
FACTS += ("parameters", "layers", "train_differs", "identity_in_eval", "gradients", "tensors")

_DESCRIBE = (
    "Describe this module in a few sentences.",
    "What does the following module do?",
    "Here is the spec of a PyTorch module. Put its facts into sentences.",
    "Describe the design behind these facts.",
    "Put this spec into words for someone who has to choose a module.",
)
_SPECIFY = (
    "Write what these requirements say as one JSON object with the keys {keys}.",
    "I need a module as follows. Give me its spec as JSON, with the keys {keys}.",
    "Turn this requirement into a structured spec: one JSON object with {keys}.",
    "Which spec says the same? Answer as JSON with the keys {keys}.",
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

_MAX_TENSORS = 12  # maximum number of output tensors
_FURTHER, _FURTHER_WITH_CODE = 2, 10  # facts of a requirement in addition to behavior and size


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
    facts = spec_facts(spec, FACTS) | ({"computes": spec.algorithm.sentences} if spec.algorithm else {})
    user = [sampler.choice(_DESCRIBE, "question"), "", fence(_format_json(facts), "json")]
    return make_draft(sampler, "\n".join(user), " ".join([*_sentences(spec, sampler), *computing_sentences(spec)]))


def specify(block: ChatBlock, sampler: Sampler) -> Draft | Skipped:
    """Draft requirements, answered with the fields that they state as JSON."""
    spec = block.spec
    if not spec.cases:
        return skip_not_run(spec)
    lines, names = _requirement(spec, sampler, _FURTHER)
    facts = spec_facts(spec, [name for name in FACTS if name in names])
    facts |= {"cases": facts["cases"][:1]}
    keys = and_list([f"`{name}`" for name in facts])
    user = [sampler.choice(_SPECIFY, "question").format(keys=keys), "", *lines]
    return make_draft(sampler, "\n".join(user), fence(_format_json(facts), "json"))


def shapes(block: ChatBlock, sampler: Sampler) -> Draft | Skipped:
    """Draft one observed call without its result, answered with the result; another call is stated in full.

    Skipped unless the result follows: from the other call and, if its shape changes, from the operations of the graph.
    """
    spec = block.spec
    if not spec.cases:
        return skip_not_run(spec)
    query_case = sampler.choice(spec.cases, "case")
    if not query_case.outputs or len(query_case.outputs) > _MAX_TENSORS:
        number = plural(len(query_case.outputs), "tensor")
        return Skipped("no_shape", f"{number} came out; 1 to {_MAX_TENSORS} can be stated")
    others = [case for case in spec.cases if case is not query_case]
    if not others:
        return Skipped("no_other_call", "only one call was observed, from which no other shape follows")
    arguments = init_words(spec)
    user = [f"{name_words(spec)}, is built {f'with {arguments}' if arguments else 'without arguments'}."]
    user += [*layer_sentence(spec), *computing_sentences(spec), *map(case_sentence, others)]
    user.append(f"It is called with {input_words(query_case)}. {sampler.choice(_SHAPES, 'question')}")
    output = output_words(query_case)
    return make_draft(
        sampler, "\n".join(user), sampler.choice((f"The output is {output}.", f"It gives {output}."), "answer")
    )


def write(block: ChatBlock, sampler: Sampler, rights: CodeRights) -> Draft | Skipped:
    """Draft requirements from the spec's facts, answered with the minimized form including its header.

    Skipped unless every part of the code may be redistributed.
    """
    spec = block.spec
    if spec.block in rights.blocked:
        return Skipped("license", rights.blocked[spec.block])
    if not spec.cases:
        return skip_not_run(spec)
    request = sampler.choice(_WRITE, "question").format(name=spec.name)
    lines, _ = _requirement(spec, sampler, _FURTHER_WITH_CODE)
    user = [request, "", *lines, *(f"- {sentence}" for sentence in computing_sentences(spec))]
    return make_draft(sampler, "\n".join(user), fence(block.minimized or block.code), notice=rights.notice(spec))


def spec_facts(spec: Spec, names: Sequence[str]) -> dict[str, Any]:
    """Return the named fields of a spec that are neither null nor empty, without null fields of nested records."""
    facts = spec.model_dump(mode="json")
    for group in ("constructor", "forward"):
        facts[group] = [{key: value for key, value in item.items() if value is not None} for item in facts[group]]
    return {name: facts[name] for name in names if facts[name] not in (None, [], {}, "")}


def _format_json(facts: Mapping[str, Any]) -> str:
    """Return facts as JSON, one field per line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items()]
    return "\n".join(["{", *(f"{line}," for line in lines[:-1]), *lines[-1:], "}"])


def _requirement(spec: Spec, sampler: Sampler, further_lines: int) -> tuple[list[str], set[str]]:
    """Return the requirements as list items, and the fields of the spec that they state in full.

    Behavior and size are always there, plus a random sample of the other facts.

    Args:
        spec: the spec of a block that ran, i.e. with cases.
        further_lines: number of other facts.
    """
    always = [f"It is {name_words(spec)}.", *(f"It {phrase}." for phrase in shape_words(spec))]
    always.append(case_sentence(spec.cases[0]))
    names = {"name", "layout", "keeps_shape", "downsampling", "changes_channels", "cases"}
    if words := parameter_words(spec):
        always.append(f"It {words}.")
        names |= {"parameters"}
    further = [("layers", line) for line in layer_sentence(spec)]
    further += [("train_differs", line) for line in mode_sentences(spec)[-1:] if spec.train_differs is not None]
    for name, label in (("constructor", "constructor"), ("forward", "`forward`")):
        if words := argument_words(getattr(spec, name)):
            further.append((name, f"Its {label} takes {words}."))
    sampled = sampler.sample(further, further_lines, "demands")
    # Names and defaults of arguments are stated, their kinds and types are not; nor are all layers if there are many.
    named = {name for name, _ in sampled} - {"constructor", "forward"}
    names |= named - ({"layers"} if len(spec.layers or {}) > LAYERS else set())
    return [f"- {line}" for line in (*always, *(line for _, line in sampled))], names


def _sentences(spec: Spec, sampler: Sampler) -> list[str]:
    """Return the observations in sentences."""
    name, kind = f"`{spec.name}`", describe_kind(spec)
    sentences: list[str] = [
        sampler.choice((f"This is {name}, {kind}.", f"{name} is {kind}.", f"{name}: {kind}."), "head")
    ]
    sentences += [*shape_sentence(spec), *map(case_sentence, spec.cases[:1]), f"It {parameter_words(spec)}."]
    sentences += [*layer_sentence(spec), *mode_sentences(spec), *gradient_sentence(spec)]
    if words := argument_words(spec.constructor):
        sentences.append(f"{sampler.choice(('Its constructor takes', 'It is built from'), 'constructor')} {words}.")
    return sentences
