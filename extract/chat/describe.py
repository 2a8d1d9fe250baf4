"""`describe`: from a block's facts to its name and a few neutral sentences."""

from extract.chat.result import No, Subject, Talk
from extract.chat.specify import FACTS, spec_lines
from extract.chat.wording import (
    and_list,
    argument_words,
    gradient_words,
    input_words,
    kind_of,
    layer_words,
    mode_words,
    output_words,
    parameter_words,
    shape_words,
)
from lemur_core.files.markdown import block
from manifests.conversations.draw import Draw
from manifests.records import Spec

_ASKED = (
    "Name this design and describe it in a few sentences.",
    "What is the following module? Give its name and say what it does.",
    "Here is the spec of a PyTorch module. Name it and put its facts into sentences.",
    "Describe the design behind these facts, and say what it is called.",
    "Put this spec into words for someone who has to choose a module; begin with its name.",
)


def describe(subject: Subject, draw: Draw) -> Talk | No:
    """The facts of a design without its name, answered with its name and the facts in sentences."""
    spec = subject.spec
    if spec.parameters is None:
        return No("not_constructed", f"it came to the rung {spec.level}")
    user = [draw.pick(_ASKED, "question"), "", *block(spec_lines(spec, FACTS), "json")]
    return Talk("\n".join(user).rstrip(), " ".join(sentences(spec, draw)))


def sentences(spec: Spec, draw: Draw) -> list[str]:
    """What was observed, in sentences."""
    head = draw.pick(
        (
            f"This is `{spec.name}`, {kind_of(spec)}.",
            f"`{spec.name}` is {kind_of(spec)}.",
            f"`{spec.name}`: {kind_of(spec)}.",
        ),
        "head",
    )
    told = [head]
    if phrases := shape_words(spec):
        told.append(f"It {and_list(phrases)}.")
    if spec.cases:
        case = spec.cases[0]
        told.append(f"Given {input_words(case)}, it gives {output_words(case)}.")
    told.append(f"It {parameter_words(spec)}.")
    if words := layer_words(spec):
        told.append(words)
    told += mode_words(spec)
    if words := gradient_words(spec):
        told.append(words)
    if words := argument_words(spec.constructor):
        told.append(f"{draw.pick(('Its constructor takes', 'It is built from'), 'constructor')} {words}.")
    return told
