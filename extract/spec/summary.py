"""A block's facts in a sentence or two, always put the same way."""

from collections.abc import Mapping, Sequence

from extract.spec.behaviour import Behaviour
from manifests.records import Observed, SpecArgument

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


def summary_of(
    name: str,
    category: str,
    constructor: Sequence[SpecArgument],
    forward: Sequence[SpecArgument],
    builds: Mapping[str, int],
    observed: Observed | None,
    behaviour: Behaviour,
    init: Mapping[str, str],
) -> str:
    """One or two sentences.

    Args:
        builds: told where nothing was observed.
        init: the constructor's arguments that worked, in neutral notation.
    """
    title = name if category == "Other" else f"{name}, {category.lower()}"
    if observed is None:
        parts = [_takes(forward), _made_from(constructor), _bag(builds, "builds ")]
        return f"{title}: {'; '.join(part for part in parts if part)}; not observed at work."
    parts = [_shapes(observed, behaviour), _bag(observed.layers), _parameters(observed, init)]
    return f"{title}: {'; '.join(part for part in parts if part)}.{_remarks(observed)}"


def scaling(factor: float | None) -> str:
    """`shrinks height and width by 2`; empty for 1 or what is not known."""
    if factor is None or factor == 1:
        return ""
    return f"shrinks by {factor:g}" if factor > 1 else f"grows by {1 / factor:g}"


def _shapes(observed: Observed, behaviour: Behaviour) -> str:
    layout = f"{behaviour.layout} inputs" if behaviour.layout else "its first input"
    if behaviour.keeps_shape:
        return f"keeps the shape of {layout}"
    told = [part for part in (scaling(behaviour.downsampling), _channels(behaviour)) if part]
    if told:
        return f"takes {layout}, {' and '.join(told)}"
    if not observed.cases:
        return ""
    count = len(observed.cases[0].outputs)
    return f"takes {layout}, gives {_number(count, 'tensor')}" if count != 1 else f"takes {layout}, changes the shape"


def _channels(behaviour: Behaviour) -> str:
    return "changes the channels" if behaviour.changes_channels else ""


def _bag(layers: Mapping[str, int], before: str = "") -> str:
    told = sorted(
        ((name, count) for name, count in layers.items() if name not in _CONTAINERS),
        key=lambda item: (-item[1], item[0]),
    )
    named = [_number(count, _WORDS.get(name, name)) for name, count in told[:_LAYERS_NAMED]]
    if not named:
        return ""
    more = len(told) - len(named)
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


def _takes(forward: Sequence[SpecArgument]) -> str:
    return f"takes {_names(forward)}" if forward else ""


def _made_from(constructor: Sequence[SpecArgument]) -> str:
    needed = [item for item in constructor if item.default is None and not item.kind.startswith("more")]
    options = sum(item.default is not None for item in constructor)
    told = [f"made from {_names(needed)}"] if needed else []
    return " and ".join([*told, *([_number(options, "option")] if options else [])])


def _names(items: Sequence[SpecArgument]) -> str:
    names = [item.name for item in items]
    return " and ".join(names) if len(names) <= 2 else f"{names[0]}, {names[1]} and {len(names) - 2} more"


def _number(count: int, word: str) -> str:
    """`a sigmoid`, `2 convolutions`, `3 × Block`."""
    is_name = " " not in word and not word.islower()
    if count == 1:
        return word if is_name else f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
    return f"{count:,} × {word}" if is_name else f"{count:,} {word}{'' if word.endswith('s') else 's'}"
