"""The kinds that say one block's facts in other words: `describe`, `specify`, `shapes`; and `write`, with its code.

Of code they hold no passage, unless it is the whole answer and its licences allow that.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extract.chat.verbalization import (
    SYSTEMS,
    and_list,
    argument_words,
    gradient_words,
    init_words,
    input_words,
    kind_of,
    layer_words,
    mode_words,
    name_words,
    output_words,
    parameter_words,
    shape_words,
)
from extract.specs.make import repeated, source_of
from extract.specs.splits import Place
from lemur_core.files.markdown import plural
from lemur_core.similarity.features.text import tokens_of
from manifests.conversations.conversation import Draft, Skipped, Subject, fence
from manifests.conversations.sampling import Sampler
from manifests.provenance import Parts, barred_blocks, read_parts
from manifests.provenance.licenses import NOASSERTION
from manifests.records import Spec

#: What a design is, in the order in which it is stated.
NAMES = ("name", "category", "bases")
FACTS = (
    "constructor",
    "forward",
    "arguments",
    "layout",
    "keeps_shape",
    "downsampling",
    "changes_channels",
    "cases",
    "parameters",
    "layers",
    "train_differs",
    "identity_in_eval",
    "gradients",
    "tensors",
)

_DESCRIBE = (
    "Name this design and describe it in a few sentences.",
    "What is the following module? Give its name and say what it does.",
    "Here is the spec of a PyTorch module. Name it and put its facts into sentences.",
    "Describe the design behind these facts, and say what it is called.",
    "Put this spec into words for someone who has to choose a module; begin with its name.",
)
_SPECIFY = (
    "Write the structured spec of a PyTorch module that meets these requirements. Answer with one JSON object.",
    "I need a module as follows. Give me its neutral spec as JSON.",
    "Turn this requirement into a structured module spec, as one JSON object.",
    "Specify a module that does this: constructor, call, shapes, size and layers, as JSON.",
    "Which design meets these requirements? State it as a JSON spec.",
)
_SHAPES = (
    "What is the shape of the output, and how many parameters does the module have?",
    "Which shape comes out, and how large is the module?",
    "Give the output shape for this input and the number of parameters.",
    "Tell me the output shape and the parameter count.",
)
_WRITE = (
    "Write a self-contained PyTorch file whose class `{name}` meets these requirements.",
    "Implement `{name}` in one closed file:",
    "I need the code of a module `{name}` as follows, in one file that needs no other.",
    "Give me a Python file that defines the module `{name}`:",
)

_MAX_TENSORS = 12  # of one output that are stated
_FURTHER, _FURTHER_WITH_CODE = 2, 10  # facts of a requirement beside behaviour and size


@dataclass(frozen=True, slots=True)
class ChatBlock:
    """A block with what may be stated of it: its spec, its place, and its code, which answers must not repeat.

    `lean` is its lean form, which is the answer where code is asked for; the whole code where it has none.
    """

    spec: Spec
    place: Place
    code: str
    lean: str | None = None

    @property
    def subject(self) -> Subject:
        """What its conversations are about."""
        names = ("block", "source", "path", "start_line", "end_line", "swhid", "license")
        columns = {name: getattr(self.spec, name) for name in names}
        drop_columns = {"block": self.spec.block, "source": self.spec.source}
        return Subject(self.spec.block, self.spec.block, self.place.split, columns, drop_columns)


def repeats(texts: Iterable[str], code: str) -> list[bool]:
    """Of each text, whether it has eight consecutive tokens in common with the code; its header is no source."""
    source = tokens_of(source_of(code))
    return [repeated(text, source) is not None for text in texts]


def guarded_text(kind: str, user: str, assistant: str) -> str:
    """The part of a conversation that must not repeat code: all of it, unless the answer is the code itself."""
    return user if kind == "write" else f"{user}\n{assistant}"


@dataclass(frozen=True, slots=True)
class Rights:
    """Whose code may be passed on, decided as publishing decides it, and the notice that goes with it."""

    barred: Mapping[str, str] = field(default_factory=dict)  # block -> the licences that do not allow it
    parts: Parts = field(default_factory=lambda: Parts({}, {}))

    def notice(self, spec: Spec) -> str:
        """Where a block's code comes from and under which licences, in one line."""
        lines = f"lines {spec.start_line}-{spec.end_line}"
        origin = f"{spec.name}: {spec.source} {spec.path}, {lines}, {spec.swhid}, {spec.license}"
        further = [
            f"{name} ({self.parts.source_licenses.get(name, NOASSERTION)})"
            for name in self.parts.made_from.get(spec.block, ())
            if name != spec.source
        ]
        also = f"; with definitions from {', '.join(further)}" if further else ""
        return f"{origin}{also}; changed: imports resolved and definitions brought together"


def read_rights(folder: Path) -> Rights:
    """The rights to the code in a folder whose table and requirements are written.

    Raises: UserError if they cannot be read.
    """
    parts = read_parts(folder)
    return Rights({block: licenses for block, (_, licenses) in barred_blocks(folder, parts).items()}, parts)


def drafted(
    sampler: Sampler, user: str, assistant: str, others: Sequence[ChatBlock] = (), notice: str | None = None
) -> Draft:
    """A draft.

    Args:
        others: further blocks that it speaks of.
        notice: of the code that the answer holds.
    """
    columns = {"others": [other.spec.block for other in others], "notice": notice}
    return Draft(sampler.choice(SYSTEMS, "system"), user, assistant, columns=columns)


def not_run(spec: Spec) -> Skipped:
    """That nothing is stated of a block that did not run."""
    return Skipped("not_run", f"it came to the rung {spec.level}")


def describe(block: ChatBlock, sampler: Sampler) -> Draft | Skipped:
    """The facts of a design without its name, answered with its name and the facts in sentences."""
    spec = block.spec
    if spec.parameters is None:
        return Skipped("not_constructed", f"it came to the rung {spec.level}")
    user = [sampler.choice(_DESCRIBE, "question"), "", fence(_spec_json(spec, FACTS), "json")]
    return drafted(sampler, "\n".join(user), " ".join(_sentences(spec, sampler)))


def specify(block: ChatBlock, sampler: Sampler) -> Draft | Skipped:
    """Requirements drawn from the spec's facts, answered with the spec; what is null is left out."""
    spec = block.spec
    if not spec.cases:
        return not_run(spec)
    user = [sampler.choice(_SPECIFY, "question"), "", *_requirement(spec, sampler, _FURTHER)]
    return drafted(sampler, "\n".join(user), fence(_spec_json(spec, (*NAMES, *FACTS)), "json"))


def shapes(block: ChatBlock, sampler: Sampler) -> Draft | Skipped:
    """One observed call without its result, answered with the result; other calls are stated as they were."""
    spec = block.spec
    if not spec.cases or spec.parameters is None:
        return not_run(spec)
    asked = sampler.choice(spec.cases, "case")
    if not asked.outputs or len(asked.outputs) > _MAX_TENSORS:
        return Skipped("no_shape", f"{plural(len(asked.outputs), 'tensor')} came out; 1 to {_MAX_TENSORS} can be told")
    given = init_words(spec)
    user = [
        f"{name_words(spec)}, is built with {given}." if given else f"{name_words(spec)}, is built without arguments."
    ]
    if words := layer_words(spec):
        user.append(words)
    user += [f"Given {input_words(case)}, it gives {output_words(case)}." for case in spec.cases if case is not asked]
    method = spec.arguments.method if spec.arguments else "forward"
    called = "It is called" if method in ("forward", "__call__") else f"Its method `{method}` is called"
    user.append(f"{called} with {input_words(asked)}. {sampler.choice(_SHAPES, 'question')}")
    output = output_words(asked)
    answer = sampler.choice((f"The output is {output}.", f"It gives {output}."), "answer")
    return drafted(sampler, "\n".join(user), f"{answer} The module {parameter_words(spec, arguments=False)}.")


def write(block: ChatBlock, sampler: Sampler, rights: Rights) -> Draft | Skipped:
    """Requirements drawn from the spec's facts, answered with its lean form, header included.

    Only where every part of the code may be passed on.
    """
    spec = block.spec
    if spec.block in rights.barred:
        return Skipped("license", rights.barred[spec.block])
    if not spec.cases:
        return not_run(spec)
    request = sampler.choice(_WRITE, "question").format(name=spec.name)
    user = [request, "", *_requirement(spec, sampler, _FURTHER_WITH_CODE)]
    return drafted(sampler, "\n".join(user), fence(block.lean or block.code), notice=rights.notice(spec))


def spec_facts(spec: Spec, names: Sequence[str]) -> dict[str, Any]:
    """These fields of a spec that are not null and hold something, without the defaults of their own records."""
    facts = spec.model_dump(mode="json")
    for group in ("constructor", "forward"):
        facts[group] = [{key: value for key, value in item.items() if value is not None} for item in facts[group]]
    return {name: facts[name] for name in names if facts[name] not in (None, [], {}, "")}


def _spec_json(spec: Spec, names: Sequence[str]) -> str:
    """The same as JSON, one field a line."""
    facts = spec_facts(spec, names)
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items()]
    return "\n".join(["{", *(f"{line}," for line in lines[:-1]), *lines[-1:], "}"])


def _requirement(spec: Spec, sampler: Sampler, further_lines: int) -> list[str]:
    """What a design must do, as items of a list: behaviour and size always, of the other facts so many by draw.

    Args: spec: of a block that ran, so that it has cases.
    """
    always = [f"It is {kind_of(spec)}."]
    always += [f"It {phrase}." for phrase in shape_words(spec)]
    case = spec.cases[0]
    always.append(f"Given {input_words(case)}, it gives {output_words(case)}.")
    if words := parameter_words(spec):
        always.append(f"It {words}.")
    further = [words] if (words := layer_words(spec)) else []
    further += mode_words(spec)
    if words := argument_words(spec.constructor):
        further.append(f"Its constructor takes {words}.")
    if words := argument_words(spec.forward):
        further.append(f"It is called with {words}.")
    return [f"- {line}" for line in (*always, *sampler.sample(further, further_lines, "demands"))]


def _sentences(spec: Spec, sampler: Sampler) -> list[str]:
    """What was observed, in sentences."""
    name, kind = f"`{spec.name}`", kind_of(spec)
    sentences = [sampler.choice((f"This is {name}, {kind}.", f"{name} is {kind}.", f"{name}: {kind}."), "head")]
    if phrases := shape_words(spec):
        sentences.append(f"It {and_list(phrases)}.")
    if spec.cases:
        case = spec.cases[0]
        sentences.append(f"Given {input_words(case)}, it gives {output_words(case)}.")
    sentences.append(f"It {parameter_words(spec)}.")
    if words := layer_words(spec):
        sentences.append(words)
    sentences += mode_words(spec)
    if words := gradient_words(spec):
        sentences.append(words)
    if words := argument_words(spec.constructor):
        sentences.append(f"{sampler.choice(('Its constructor takes', 'It is built from'), 'constructor')} {words}.")
    return sentences
