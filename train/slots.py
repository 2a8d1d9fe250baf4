"""The places of the network: what each hands its filler, and which blocks are worth trying there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from manifests.records import Spec
from train.recipe import Model

#: What a factory of the network's file can hand on, whatever the slot; see `train.glue`.
FACTORIES = {
    "norm": "make_norm",
    "activation": "make_activation",
    "norm_activation": "make_norm_activation",
    "conv": "make_conv",
}

_IMAGE_CHANNELS = 3
_CLASSES = 10
_MOST_NORM_PARAMETERS = 8  # a channel
_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class Filler:
    """What may fill a slot: `TARGET(ARGUMENTS)`, where the target is a class of `code`, or an expression of torch.

    `code` is a closed file, empty for what torch brings. `builds` holds the arguments to try, the preferred ones first;
    the names in them are the slot's `values` and the factories.
    """

    use: str
    target: str
    builds: tuple[str, ...]
    code: str = ""
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotKind:
    """One kind of place: the values that its factory takes, the placeholders of a recipe for them, a prefilter."""

    name: str
    values: tuple[str, ...]
    placeholders: dict[str, str]
    suits: Callable[[Spec], bool]
    factories: tuple[str, ...] = tuple(FACTORIES)

    def expression(self, placeholder: str) -> str | None:
        """The Python name that stands for `$placeholder` here; None if there is none."""
        if placeholder in self.factories:
            return FACTORIES[placeholder]
        return self.placeholders.get(placeholder)

    @property
    def known(self) -> list[str]:
        """All placeholders of this slot, as a recipe writes them."""
        return [f"${name}" for name in (*self.placeholders, *self.factories)]


def _four_dimensional(spec: Spec) -> bool:
    case = spec.cases[0]
    inputs = list(case.inputs.values())
    return len(inputs) == 1 and _dimensions(inputs[0]) == _DIMENSIONS and inputs[0].startswith("float32")


def _dimensions(tensor: str) -> int:
    return len(tensor.rpartition(" ")[2].split("×"))


def _one_tensor(spec: Spec) -> bool:
    return len(spec.cases[0].inputs) == 1 and spec.keeps_shape is True


def _stem(spec: Spec) -> bool:
    outputs = spec.cases[0].outputs
    maps = len(outputs) == 1 and _dimensions(outputs[0]) == _DIMENSIONS
    return _four_dimensional(spec) and maps and spec.downsampling == 1 and bool(spec.parameters)


def _keeps(spec: Spec) -> bool:
    return _four_dimensional(spec) and spec.keeps_shape is True and bool(spec.parameters)


def _halves(spec: Spec) -> bool:
    return _four_dimensional(spec) and spec.downsampling == 2


def _norm(spec: Spec) -> bool:
    if not (_keeps_four(spec) and spec.constructor):
        return False
    channels = _channels(spec)
    return (spec.parameters or 0) <= _MOST_NORM_PARAMETERS * channels


def _keeps_four(spec: Spec) -> bool:
    return _four_dimensional(spec) and spec.keeps_shape is True


def _activation(spec: Spec) -> bool:
    needed = [one for one in spec.constructor if one.default is None and one.kind in ("positional", "keyword")]
    return _one_tensor(spec) and not needed and (spec.parameters or 0) <= 1


def _stochastic_depth(spec: Spec) -> bool:
    return _one_tensor(spec) and spec.identity_in_eval is True and not spec.parameters


def _head(spec: Spec) -> bool:
    outputs = spec.cases[0].outputs
    return _four_dimensional(spec) and len(outputs) == 1 and _dimensions(outputs[0]) == 2


def _channels(spec: Spec) -> int:
    first = next(iter(spec.cases[0].inputs.values()))
    return int(first.rpartition(" ")[2].split("×")[1])


_CHANNELS = {"channels": "channels", "in_channels": "channels", "out_channels": "channels"}

SLOTS: dict[str, SlotKind] = {
    kind.name: kind
    for kind in (
        SlotKind(
            "stem",
            ("in_channels", "out_channels"),
            {"channels": "in_channels", "in_channels": "in_channels", "out_channels": "out_channels"},
            _stem,
        ),
        SlotKind("residual", ("channels", "rate"), _CHANNELS | {"rate": "rate"}, _keeps),
        SlotKind("attention", ("channels",), _CHANNELS, _keeps),
        SlotKind(
            "downsample",
            ("channels", "out_channels"),
            _CHANNELS | {"out_channels": "out_channels"},
            _halves,
        ),
        SlotKind("norm", ("channels",), _CHANNELS, _norm, factories=()),
        SlotKind("activation", (), {}, _activation, factories=()),
        SlotKind("stochastic_depth", ("rate",), {"rate": "rate"}, _stochastic_depth, factories=()),
        SlotKind("head", ("channels", "classes"), {**_CHANNELS, "classes": "classes"}, _head),
    )
}


def suits(slot: str, spec: Spec) -> bool:
    """Whether what was observed of a block makes it worth trying in a slot."""
    tried = spec.level in ("forward", "backward") and bool(spec.cases) and bool(spec.cases[0].inputs)
    return tried and bool(spec.cases[0].outputs) and SLOTS[slot].suits(spec)


def sizes_of(slot: str, widths: Sequence[int]) -> list[dict[str, int]]:
    """The values at which a filler of this slot must work, for stages of these widths."""
    if slot == "stem":
        return [{"in_channels": _IMAGE_CHANNELS, "out_channels": widths[0]}]
    if slot == "downsample":
        pairs = list(pairwise(widths)) or [(widths[0], widths[0])]
        return [{"channels": before, "out_channels": after} for before, after in dict.fromkeys(pairs)]
    if slot == "head":
        return [{"channels": widths[-1], "classes": _CLASSES}]
    if slot in ("activation", "stochastic_depth"):
        return [{"channels": widths[-1]}]
    return [{"channels": width} for width in dict.fromkeys(widths)]


def widths_of(slot: str, model: Model) -> tuple[int, ...]:
    """The widths at which a slot is used in a network of this shape."""
    if slot in ("residual", "attention"):
        return tuple(width for width, depth in zip(model.widths, model.depths, strict=True) if depth)
    return model.widths
