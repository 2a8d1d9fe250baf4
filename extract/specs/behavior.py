"""Behavior of an observed block: facts inferred from its shapes, and a summary of one or two fixed-form sentences."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from extract.specs.notation import format_expression
from lemur_core.files.markdown import article
from manifests.records import Block, Case, Observed, SpecArgument

_TENSOR = re.compile(r"\w+ (\d+(?:x\d+)*|scalar)")
_PLACE = re.compile(r"\*(\d{1,4})(?=\.|$)")
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Behavior:
    """Facts about the first input tensor and the first output tensor; None if unknown.

    The factor and the change of channels hold against every input of as many dimensions: else they are None.
    """

    layout: str | None = None
    keeps_shape: bool | None = None
    downsampling: float | None = None
    changes_channels: bool | None = None


def infer_behavior(observed: Observed, letters: str | None, *, both_modes: bool = True) -> Behavior:
    """Infer the behavior from the observed cases, which are of eval mode.

    Args:
        letters: layout of the first tensor, one letter per dimension, if the graph determines it.
        both_modes: False unless train mode is known to give the same shapes: else nothing is stated of the output's.
    """
    pairs = [pair for case in observed.cases if (pair := _pair(case)) is not None]
    if not pairs:
        return Behavior()
    single = all(len(case.outputs) == 1 for case in observed.cases)
    keeps = single and all(before == after for before, after in pairs)
    rank = len(pairs[0][0])
    # Inputs of several ranks have no common layout.
    if letters is None or len(letters) != rank or any(len(before) != rank for before, _ in pairs):
        return Behavior(keeps_shape=keeps if both_modes else None)
    layout, last = "×".join(letters), letters.endswith("C") and rank > 2
    if not both_modes:
        return Behavior(layout)
    if find_kept_input(observed.cases) is not None:
        return Behavior(layout, keeps)
    if any(len(after) != rank for _, after in pairs):
        return Behavior(layout, keeps)
    channel_axis = letters.find("C") if "C" in letters else 1
    against = [pairs, *_pair_others(observed.cases, rank)]
    factors = {_factor(some, last) if letters[0] == "N" else None for some in against}
    changes = {any(a[channel_axis] != b[channel_axis] for a, b in some) for some in against}
    factor = factors.pop() if len(factors) == 1 else None
    return Behavior(layout, keeps, factor, changes.pop() if len(changes) == 1 else None)


def _pair_others(cases: Sequence[Case], rank: int) -> list[list[tuple[Shape, Shape]]]:
    """Return the pairs of input and output for each input of that rank besides the first tensor."""
    names = [name for name, value in cases[0].inputs.items() if _shape(value) is not None][1:]
    shapes = [[(_shape(case.inputs.get(name, "")), _shape(case.outputs[0])) for case in cases] for name in names]
    return [[(a, b) for a, b in some if a and b] for some in shapes if all(a and b and len(a) == rank for a, b in some)]


def find_kept_input(cases: Sequence[Case]) -> str | None:
    """Return the input whose shape the only output has in all cases, if it is not the first; None if there is none."""
    if not cases or any(len(case.outputs) != 1 for case in cases):
        return None
    names, shapes = list(cases[0].inputs), [value.rpartition(" ")[2] for case in cases for value in case.outputs]
    kept = [
        name
        for name in names
        if [case.inputs.get(name, "").rpartition(" ")[2] for case in cases] == shapes and "scalar" not in shapes
    ]
    return kept[0] if kept and kept[0] != names[0] else None


def neutralize_case(case: Case, names: Sequence[str]) -> Case:
    """Return the case with shapes written as `2×16×8×8`, and positional inputs named by their parameters."""
    inputs = {name_input(name, names): _neutralize(value) for name, value in case.inputs.items()}
    return Case(inputs=inputs, outputs=tuple(_neutralize(value) for value in case.outputs))


def _neutralize(value: str) -> str:
    return re.sub(r"(?<=\d)x(?=\d)", "×", value) if _TENSOR.fullmatch(value) else format_expression(value)


def name_input(name: str, names: Sequence[str]) -> str:
    """Rewrite `*0` and `*0.key` as `x` and `x.key`."""
    match = _PLACE.match(name)
    return names[int(match[1])] + name[match.end() :] if match and int(match[1]) < len(names) else name


def _shape(value: str) -> Shape | None:
    match = _TENSOR.fullmatch(value)
    if match is None:
        return None
    return () if match[1] == "scalar" else tuple(int(size) for size in match[1].split("x"))


def _pair(case: Case) -> tuple[Shape, Shape] | None:
    """Return the shapes of the first input tensor and the first output tensor."""
    before = next((shape for value in case.inputs.values() if (shape := _shape(value)) is not None), None)
    after = next((shape for value in case.outputs if (shape := _shape(value)) is not None), None)
    return None if before is None or after is None else (before, after)


def _factor(pairs: Sequence[tuple[Shape, Shape]], last: bool) -> float | None:
    """Return the common factor by which the inner dimensions (neither batch nor channels) shrink, or None.

    If sizes vary, the factor follows from the differences: a stride of 2 without padding maps 16 to 7 and 32 to 15.
    """
    inner = slice(1, -1) if last else slice(2, None)
    sizes = {pair for before, after in pairs for pair in zip(before[inner], after[inner], strict=True)}
    smallest, largest = min(sizes, default=(0, 0)), max(sizes, default=(0, 0))
    grown = largest[0] - smallest[0], largest[1] - smallest[1]
    if grown[0] > 0 and grown[1] > 0 and grown[0] != grown[1]:
        factor = grown[0] / grown[1]
        same = all(abs((before - smallest[0]) - factor * (after - smallest[1])) < 1e-6 for before, after in sizes)
        return factor if same else None
    factors = {_ratio(*size) for size in sizes}
    return factors.pop() if len(factors) == 1 else None


def _ratio(before: int, after: int) -> float | None:
    if not before or not after:
        return None
    if after > before:
        return before / after if after % before == 0 else None
    # Sizes round up or down with the padding: both count as this factor.
    factor = round(before / after)
    return float(factor) if after in (before // factor, -(-before // factor)) else None


# --- in words ---------------------------------------------------------------------------------------------------------

_LAYERS_NAMED = 4
_NAMED = 3
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "Identity", "ParameterList"})
_WORDS = {
    "Conv1d": "1D convolution",
    "Conv2d": "convolution",
    "Conv3d": "3D convolution",
    "ConvTranspose2d": "transposed convolution",
    "Linear": "linear layer",
    "BatchNorm1d": "1D batch normalization",
    "BatchNorm2d": "batch normalization",
    "LayerNorm": "layer normalization",
    "GroupNorm": "group normalization",
    "Dropout": "dropout",
    "MultiheadAttention": "multihead attention",
    "Embedding": "embedding",
    "MaxPool2d": "max pooling",
    "AvgPool2d": "average pooling",
    "AdaptiveAvgPool2d": "adaptive average pooling",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
}


def summarize_block(
    name: str,
    category: str,
    constructor: Sequence[SpecArgument],
    forward: Sequence[SpecArgument],
    builds: Mapping[str, int],
    observed: Observed | None,
    behavior: Behavior,
    init: Mapping[str, str],
) -> str:
    """Return a summary of one or two sentences.

    Args:
        builds: classes that the block constructs; used if no parameters were observed.
        init: the working constructor arguments, in neutral notation.
    """
    remark = f".{_remarks(observed)}" if observed is not None else "; not observed at work."
    if observed is None or not (observed.cases or observed.parameters):
        # What was constructed alone may have got arguments that make no sense: that it has no parameters says nothing.
        takes = f"takes {_list_names(forward)}" if forward else ""
        parts = [takes, _describe_constructor(constructor), _bag(builds, "builds ")]
    else:
        parts = [_describe_shapes(observed, behavior), _bag(observed.layers), _parameters(observed, init)]
    title = name if category == "Other" else f"{name}, {category.lower()}"
    return f"{title}: {'; '.join(filter(None, parts))}{remark}"


def _describe_shapes(observed: Observed, behavior: Behavior) -> str:
    layout = f"{behavior.layout} inputs" if behavior.layout else "its first input"
    if behavior.keeps_shape:
        return f"keeps the shape of {layout}"
    factor = behavior.downsampling or 1
    changes = [f"shrinks by {factor:g}" if factor > 1 else f"grows by {1 / factor:g}"] if factor != 1 else []
    changes += ["changes the channels"] if behavior.changes_channels else []
    if (kept := find_kept_input(observed.cases)) is not None and not kept.startswith("*"):
        changes = [f"gives the shape of {kept}"]
    if changes:
        return f"takes {layout}, {' and '.join(changes)}"
    if not observed.cases:
        return ""
    if behavior.keeps_shape is None:
        return f"takes {layout}"
    count = len(observed.cases[0].outputs)
    change = "changes the shape" if count == 1 else f"gives {_number(count, 'tensor')}"
    return f"takes {layout}, {change}"


def _bag(layers: Mapping[str, int], before: str = "") -> str:
    ranked = sorted((-count, name) for name, count in layers.items() if name not in _CONTAINERS)
    named = [_number(-count, _WORDS.get(name, name)) for count, name in ranked[:_LAYERS_NAMED]]
    if not named:
        return ""
    more = len(ranked) - len(named)
    return before + ", ".join(named) + (f" and {_number(more, 'further kind')}" if more > 0 else "")


def _parameters(observed: Observed, init: Mapping[str, str]) -> str:
    if not observed.parameters:
        return "no parameters"
    shown = [f"{name} {value}" for name, value in init.items() if len(value) <= 12 and name[0] != "*"][:_NAMED]
    return _number(observed.parameters, "parameter") + (f" with {', '.join(shown)}" if shown else "")


def _remarks(observed: Observed) -> str:
    if not observed.cases:
        return " It was constructed, not run."
    if observed.identity_in_eval:
        return " Returns its input in eval mode."
    return " Train and eval mode differ." if observed.train_differs else ""


def _describe_constructor(constructor: Sequence[SpecArgument]) -> str:
    needed = [item for item in constructor if item.default is None and not item.kind.startswith("more")]
    options = sum(item.default is not None for item in constructor)
    parts = [f"made from {_list_names(needed)}" if needed else "", _number(options, "option") if options else ""]
    return " and ".join(filter(None, parts))


def _list_names(items: Sequence[SpecArgument]) -> str:
    names = [item.name for item in items]
    return " and ".join(names) if len(names) <= 2 else f"{names[0]}, {names[1]} and {len(names) - 2} more"


def _number(count: int, word: str) -> str:
    """Return e.g. `a sigmoid`, `2 convolutions` or `3 × Block`."""
    is_name = " " not in word and not word.islower()
    if count == 1:
        return word if is_name else article(word)
    return f"{count:,} × {word}" if is_name else f"{count:,} {word}{'' if word.endswith('s') else 's'}"


# --- what a run did not show ----------------------------------------------------------------------------------------


def list_kinds(row: Block) -> tuple[str, ...]:
    """Return the kinds of what the run of a block did not show, each once."""
    return tuple(dict.fromkeys(line.partition(":")[0] for line in (row.not_shown or "").splitlines()))


def list_not_shown(observed: str | None) -> tuple[str, ...]:
    """Return what the run of a block did not show, one line each: a kind and, after a colon, what it is about.

    Args: observed: an Observed record as JSON.
    """
    if observed is None:
        return ()
    seen = Observed.model_validate_json(observed)
    lines = [f"no code initializes these parameters: {', '.join(seen.uninitialized)}"] if seen.uninitialized else []
    lines += ["its output is its input"] if seen.identity_in_eval and seen.train_differs is not True else []
    lines += ["all gradients are zero"] if seen.zero_gradients else []
    lines += [f"train mode fails: {seen.train_error}"] if seen.train_error is not None else []
    lines += [f"a value does not fit its annotation: {text}" for text in seen.misfits]
    return tuple(lines)
