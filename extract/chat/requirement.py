"""A requirement in words: what a design must do, drawn from what one block was observed to do."""

from extract.chat.wording import (
    argument_words,
    input_words,
    kind_of,
    layer_words,
    mode_words,
    output_words,
    parameter_words,
    shape_words,
)
from manifests.conversations.draw import Draw
from manifests.records import Spec


def requirement_of(spec: Spec, draw: Draw, further_lines: int = 2) -> list[str]:
    """One line a demand: behaviour and size always, of the other facts so many by draw.

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
    return [*always, *draw.sample(further, further_lines, "demands")]
