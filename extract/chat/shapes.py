"""`shapes`: from a block's arguments and the shape of an input to what came out, and how many parameters it has."""

from extract.chat.result import No, Subject, Talk
from extract.chat.specify import about
from extract.chat.wording import init_words, input_words, layer_words, output_words, parameter_words
from lemur_core.files.markdown import plural
from manifests.conversations.draw import Draw

_ASKED = (
    "What is the shape of the output, and how many parameters does the module have?",
    "Which shape comes out, and how large is the module?",
    "Give the output shape for this input and the number of parameters.",
    "Tell me the output shape and the parameter count.",
)

#: Tensors of one output that are told at most.
_LONGEST = 12


def shapes(subject: Subject, draw: Draw) -> Talk | No:
    """One observed call without its result, answered with the result; other calls are told as they were."""
    spec = subject.spec
    if not spec.cases or spec.parameters is None:
        return No("not_run", f"it came to the rung {spec.level}")
    asked = draw.pick(spec.cases, "case")
    if not asked.outputs or len(asked.outputs) > _LONGEST:
        return No("no_shape", f"{plural(len(asked.outputs), 'tensor')} came out; 1 to {_LONGEST} can be told")
    given = init_words(spec)
    built = f"{about(spec)}, is built with {given}." if given else f"{about(spec)}, is built without arguments."
    user = [built]
    if words := layer_words(spec):
        user.append(words)
    user += [f"Given {input_words(case)}, it gives {output_words(case)}." for case in spec.cases if case is not asked]
    method = spec.arguments.method if spec.arguments else "forward"
    called = "It is called" if method in ("forward", "__call__") else f"Its method `{method}` is called"
    user.append(f"{called} with {input_words(asked)}. {draw.pick(_ASKED, 'question')}")
    answer = [draw.pick((f"The output is {output_words(asked)}.", f"It gives {output_words(asked)}."), "answer")]
    answer.append(f"The module {parameter_words(spec, arguments=False)}.")
    return Talk("\n".join(user), " ".join(answer))
