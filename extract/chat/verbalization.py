"""Put the facts of a spec into words. Each function states an observation; the result is empty if the fact is null."""

import re
from collections.abc import Mapping, Sequence

from extract.specs.algorithm import list_caveats
from extract.specs.behavior import find_kept_input
from lemur_core.files.markdown import plural
from manifests.records import Case, Spec, SpecArgument

SYSTEMS = (
    "You are an expert in PyTorch network design. Shapes are written 2×16×8×8, layouts N×C×H×W; facts about a module"
    " were measured on the CPU with the arguments that are stated.",
    "You help people to choose and specify PyTorch modules. What is said of a module was observed as it ran; shapes are"
    " written like 2×16×8×8 and layouts like N×C×H×W.",
    "You know neural network building blocks in PyTorch. Answer with facts: shapes (written 2×16×8×8), layouts"
    " (N×C×H×W), parameters and layers.",
)

#: Maximum number of kinds of layers to state.
LAYERS = 10

_KINDS = {
    "Activation": "an activation function",
    "Attention": "an attention block",
    "Augmentation": "an augmentation",
    "Convolution": "a convolution block",
    "Detection": "a part of a detector",
    "Embedding": "an embedding",
    "Graph": "a graph network layer",
    "Head": "a head",
    "Loss": "a loss",
    "MLP": "an MLP block",
    "Neck": "a neck",
    "Network": "a whole network",
    "Normalization": "a normalization layer",
    "Pooling": "a pooling block",
    "Quantization": "a quantization block",
    "Recurrent": "a recurrent block",
    "Regularization": "a regularizer",
    "Resampling": "a resampling block",
    "Segmentation": "a part of a segmentation network",
    "Transformer": "a transformer module",
}
_TENSOR = re.compile(r"(\w+) (\d+(?:×\d+)*|scalar)")
_LEFT_OUT = re.compile(r"\d further (?:sentence|step)|Train mode goes another way")
_MORE = {"more positional": "any number of positional arguments", "more keyword": "any other keyword arguments"}
_SCALINGS = {1: "keeps", 2: "halves", 0.5: "doubles"}
_INNER = {
    "N×C×L": "the length",
    "N×L×C": "the length",
    "N×C×H×W": "height and width",
    "N×H×W×C": "height and width",
    "N×C×D×H×W": "depth, height and width",
    "N×D×H×W×C": "depth, height and width",
}


def describe_kind(spec: Spec) -> str:
    """Return e.g. `an attention block`; `a module` if the category is unknown."""
    return _KINDS.get(spec.category, "a module")


def name_words(spec: Spec) -> str:
    """Return the name and kind: "`SEModule`, an attention block"."""
    return f"`{spec.name}`, {describe_kind(spec)}"


def and_list(items: Sequence[str]) -> str:
    """Join items as in `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def shape_words(spec: Spec) -> list[str]:
    """Describe the effect on shapes in verb phrases: `keeps the shape of its N×C×H×W input`."""
    layout = f"{spec.layout} input" if spec.layout else "first input"
    tensors = [name for case in spec.cases[:1] for name, text in case.inputs.items() if split_shape(text)]
    layout += f" {_label(tensors[0], 'input')}" if len(tensors) > 1 and not tensors[0].startswith("*") else ""
    if spec.keeps_shape:
        return [f"keeps the shape of its {layout}"]
    phrases = [f"takes an {layout}"] if spec.layout else []
    outputs = len(spec.cases[0].outputs) if spec.cases else 1
    of = "" if outputs == 1 else " in its first output"
    if (phrase := scaling_phrase(spec)) is not None:
        phrases.append(f"{phrase}{of}")
    if spec.keeps_shape is not None and (kept := find_kept_input(spec.cases)) is not None:
        phrases.append(f"gives the shape of {_label(kept, 'input')}")
    if spec.changes_channels is not None:
        phrases.append(f"{'changes' if spec.changes_channels else 'keeps'} the number of channels{of}")
    if outputs != 1:
        phrases.append(f"gives {outputs or 'no'} tensors{_mode(spec)}")
    # Only if no earlier phrase states what changes.
    elif spec.keeps_shape is False and all(words.startswith(("takes", "keeps")) for words in phrases):
        phrases.append("gives another shape")
    return phrases


def scaling_phrase(spec: Spec) -> str | None:
    """Describe the effect on the inner dimensions: `halves height and width`; None if it was not observed."""
    factor, inner = spec.downsampling, _INNER.get(spec.layout or "")
    if factor is None or inner is None:
        return None
    about = "" if _scales_exactly(spec, factor) else "roughly "
    if factor in _SCALINGS:
        return f"{about}{_SCALINGS[factor]} {inner}"
    return f"{about}divides {inner} by {factor:.4g}" if factor > 1 else f"{about}multiplies {inner} by {1 / factor:.4g}"


def _scales_exactly(spec: Spec, factor: float) -> bool:
    """Return False if the sizes of the observed calls show a remainder, as 20 pixels that become 11."""
    inner = [index for index, letter in enumerate((spec.layout or "").split("×")) if letter not in "NC"]
    for case in spec.cases:
        before, after = (split_shape(text) for text in (next(iter(case.inputs.values()), ""), *case.outputs[:1]))
        if len(before) == len(after) and any(before[at] != round(after[at] * factor) for at in inner):
            return False
    return True


def split_shape(tensor: str) -> tuple[int, ...]:
    """Return the sizes of a tensor that is described as `float32 2×16×8×8`; none for anything else."""
    match = _TENSOR.fullmatch(tensor)
    return tuple(map(int, match[2].split("×"))) if match and match[2] != "scalar" else ()


def parameter_words(spec: Spec, *, arguments: bool = True) -> str:
    """Return e.g. `has 280 parameters when built with channels 16`; empty if they were not counted."""
    if spec.parameters is None:
        return ""
    size = f"has {plural(spec.parameters, 'parameter')}" if spec.parameters else "has no parameters"
    values = init_words(spec) if arguments else ""
    return f"{size} when built with {values}" if values else size


def init_words(spec: Spec) -> str:
    """List the working constructor arguments: "`channels` 16 and `ratio` 0.5"; empty if there are none."""
    values = spec.arguments.init if spec.arguments else {}
    return and_list([f"{_label(name, 'argument')} {value}" for name, value in values.items()])


def _label(name: str, kind: str) -> str:
    """Return a name as code; an argument or input without one is called by its position."""
    return f"{kind} {int(name[1:]) + 1}" if name.startswith("*") and name[1:].isdecimal() else f"`{name}`"


def shape_sentence(spec: Spec) -> list[str]:
    """Return the phrases of `shape_words` as one sentence, if there are any."""
    return [f"It {and_list(phrases)}."] if (phrases := shape_words(spec)) else []


def case_sentence(spec: Spec, case: Case) -> str:
    """Return the inputs and outputs of a call."""
    return f"For {input_words(case)}, it returns {output_words(case)}{_mode(spec)}."


def _mode(spec: Spec) -> str:
    """Return an empty text if shapes are known to be the same in train mode, as facts about them then say."""
    return " in eval mode" if spec.keeps_shape is None else ""


def bag(layers: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the most frequent kinds of layers, at most `LAYERS`."""
    return sorted(layers.items(), key=lambda item: (-item[1], item[0]))[:LAYERS]


def layer_sentence(spec: Spec) -> list[str]:
    """Return e.g. `Its submodules are 2 Conv2d and 1 ReLU.`, if they were observed."""
    if spec.layers is None:
        return []
    if not spec.layers:
        return ["It has no submodules."]
    if sum(spec.layers.values()) == 1:
        return [f"Its only submodule is one `{next(iter(spec.layers))}`."]
    named = [f"{number:,} `{name}`" for name, number in bag(spec.layers)]
    more = len(spec.layers) - len(named)
    return [f"Its submodules are {and_list([*named, *([plural(more, 'further kind')] if more else [])])}."]


def computing_sentences(spec: Spec) -> list[str]:
    """Return the sentences on its graph, introduced by one that says so; none without a graph, or without a step."""
    sentences = spec.algorithm.sentences if spec.algorithm else ()
    if spec.algorithm is None or not sentences:
        return []
    return [*list_caveats(spec.algorithm), f"What it computes: {sentences[0]}", *sentences[1:]]


def tells_all(spec: Spec) -> bool:
    """Return True if the sentences on its graphs leave nothing out; False if one of the two modes has no graph."""
    algorithm = spec.algorithm
    if algorithm is None or algorithm.train_error is not None or list_caveats(algorithm):
        return False
    return bool(algorithm.sentences) and _LEFT_OUT.search(" ".join(algorithm.sentences)) is None


def mode_sentences(spec: Spec) -> list[str]:
    """Describe train and eval mode."""
    sentences = []
    if spec.identity_in_eval:
        beginning = "it returns" if not spec.cases or len(spec.cases[0].outputs) == 1 else "its first output is"
        sentences.append(f"In eval mode {beginning} its first input unchanged.")
    if spec.train_differs is not None:
        outputs = "different outputs" if spec.train_differs else "the same output"
        sentences.append(f"Train and eval mode give {outputs}.")
    return sentences


def gradient_words(spec: Spec) -> str:
    """Return where finite gradients arrive, e.g. `3 of its 4 parameter tensors`; empty if they were not observed."""
    if spec.gradients is None or not spec.tensors:
        return ""
    if not spec.parameters:  # without parameters, the gradients are those of the input
        return "its input" if spec.gradients else ""
    if spec.gradients == spec.tensors:
        return "its only parameter tensor" if spec.tensors == 1 else f"all of its {spec.tensors:,} parameter tensors"
    return f"{spec.gradients or 'none'} of its {plural(spec.tensors, 'parameter tensor')}"


def input_words(case: Case) -> str:
    """Describe the inputs: "`x` (float32 of shape 2×16×8×8)"."""
    words = [
        f"{_label(name, 'input')} {_describe_tensor(tensor, '({} scalar)', '({} of shape {})')}"
        for name, tensor in case.inputs.items()
    ]
    return and_list(words) or "no input"


def output_words(case: Case) -> str:
    """Describe the outputs."""
    if not case.outputs:
        return "no tensor"
    if len(case.outputs) == 1:
        return _describe_tensor(case.outputs[0], "one {} scalar", "one {} tensor of shape {}")
    return f"{len(case.outputs)} tensors: {and_list(case.outputs)}"


def _describe_tensor(tensor: str, scalar: str, shaped: str) -> str:
    """Put dtype and shape into one of two formats; return anything else unchanged."""
    if (match := _TENSOR.fullmatch(tensor)) is None:
        return tensor
    return (scalar if match[2] == "scalar" else shaped).format(*match.groups())


def argument_words(arguments: Sequence[SpecArgument]) -> str:
    """List arguments by name, optional ones with their defaults: "`channels`, optionally `ratio` (0.5)"."""
    required = [f"`{item.name}`" for item in arguments if item.default is None and not item.kind.startswith("more")]
    optional = [f"`{item.name}` ({item.default})" for item in arguments if item.default is not None]
    more = [_MORE[item.kind] for item in arguments if item.kind in _MORE]
    if not required:
        return f"optional arguments only: {and_list([*optional, *more])}" if optional else and_list(more)
    optional += more
    return f"{and_list(required)}, optionally {and_list(optional)}" if optional else and_list(required)
