"""`specify`: from a requirement in words to the structured spec of a design that meets it, as JSON."""

import json
from typing import Any

from extract.chat.requirement import requirement_of
from extract.chat.result import No, Subject, Talk
from extract.chat.wording import kind_of
from lemur_core.files.markdown import block
from manifests.conversations.draw import Draw
from manifests.records import Spec

#: What a design is, in the order in which it is told.
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

_ASKED = (
    "Write the structured spec of a PyTorch module that meets these requirements. Answer with one JSON object.",
    "I need a module as follows. Give me its neutral spec as JSON.",
    "Turn this requirement into a structured module spec, as one JSON object.",
    "Specify a module that does this: constructor, call, shapes, size and layers, as JSON.",
    "Which design meets these requirements? State it as a JSON spec.",
)


def specify(subject: Subject, draw: Draw) -> Talk | No:
    """Requirements drawn from the spec's facts, answered with the spec; what is null is left out."""
    spec = subject.spec
    if not spec.cases:
        return No("not_run", f"it came to the rung {spec.level}")
    user = [draw.pick(_ASKED, "question"), "", *(f"- {line}" for line in requirement_of(spec, draw))]
    return Talk("\n".join(user), "\n".join(block(spec_lines(spec, (*NAMES, *FACTS)), "json")).rstrip())


def spec_facts(spec: Spec, names: tuple[str, ...]) -> dict[str, Any]:
    """These fields of a spec that are not null and hold something, without the defaults of their own records."""
    facts = spec.model_dump(mode="json")
    for group in ("constructor", "forward"):
        facts[group] = [{key: value for key, value in item.items() if value is not None} for item in facts[group]]
    return {name: facts[name] for name in names if facts[name] not in (None, [], {}, "")}


def spec_lines(spec: Spec, names: tuple[str, ...]) -> list[str]:
    """The same as JSON, one field a line."""
    told = [f"  {json.dumps(n)}: {json.dumps(v, ensure_ascii=False)}" for n, v in spec_facts(spec, names).items()]
    return ["{", *(f"{line}," for line in told[:-1]), *told[-1:], "}"]


def about(spec: Spec) -> str:
    """ "`SEModule`, an attention block"."""
    return f"`{spec.name}`, {kind_of(spec)}"
