"""The slots of a network: the values passed to each filler, the built-in fillers, and the blocks worth trying."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from lemur_core.files import Json
from manifests.records import Block, Spec
from train.model.recipe import ModelSettings

#: Values that a factory of the network's file can pass on in any slot; see `network.py.jinja`.
FACTORIES = {
    "norm": "make_norm",
    "activation": "make_activation",
    "norm_activation": "make_norm_activation",
    "conv": "make_conv",
}

LINE = 120  # characters
_MAPS = 4  # dimensions: images, channels, height, width


@dataclass(frozen=True, slots=True)
class Filler:
    """A possible filler of a slot: `TARGET(ARGUMENTS)`; the target is a class of its code, or an expression of torch.

    `use` is its name in a recipe. `builds` has the arguments to try, preferred ones first; the names in them are the
    slot's `values` and the factories. A built-in part has no block, and `own` is its code, empty for parts of torch.
    `facts`: the observations of the slot's check.
    `float32`: computed in it where the network is in bfloat16.
    """

    use: str
    target: str
    builds: tuple[str, ...]
    own: str = ""
    imports: tuple[str, ...] = ()
    block: Block | None = None
    facts: Json = field(default_factory=dict)
    float32: bool = False

    @property
    def names(self) -> set[str]:
        """Return the names that the arguments use."""
        tree = ast.parse(f"call({self.builds[0]})")
        return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

    def call(self, before: str, after: str = "") -> str:
        """Return the call on one line between two texts, or with one argument per line if that is too long."""
        indent = " " * (len(before) - len(before.lstrip()))
        if self.float32:
            before, after = f"{before}InFloat32(", f"){after}"
        line = f"{before}{self.target}({self.builds[0]}){after}\n"
        if len(line) - 1 <= LINE:
            return line
        text = f"call({self.builds[0]})"
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        named = [("", node) for node in call.args] + [(f"{each.arg}=", each.value) for each in call.keywords]
        lines = [f"{indent}    {name}{ast.get_source_segment(text, node)},\n" for name, node in named]
        return f"{before}{self.target}(\n{''.join(lines)}{indent}){after}\n"

    @property
    def code(self) -> str:
        """A self-contained file; empty for parts of torch."""
        return (self.block.code or "") if self.block else self.own


_CHANNELS = {"channels": "channels", "in_channels": "channels", "out_channels": "channels"}

#: The slots that blocks can fill. By slot, the Python names that a recipe's placeholders stand for: `$channels`,
#: `$norm` and the like.
SLOTS: dict[str, dict[str, str]] = {
    "residual": {**_CHANNELS, "rate": "rate", **FACTORIES},
    "attention": {**_CHANNELS, **FACTORIES},
    "downsample": {**_CHANNELS, "out_channels": "out_channels", **FACTORIES},
    "stochastic_depth": {"rate": "rate"},
}


def suits(slot: str, spec: Spec) -> bool:
    """Return whether the observed behavior of a block makes it worth trying in a slot."""
    if spec.level not in ("forward", "backward") or not spec.cases:
        return False
    inputs, outputs = list(spec.cases[0].inputs.values()), spec.cases[0].outputs
    if len(inputs) != 1 or not outputs:
        return False
    keeps, parameters = spec.keeps_shape is True, spec.parameters or 0
    if slot == "stochastic_depth":
        return keeps and spec.identity_in_eval is True and not parameters
    sizes = inputs[0].rpartition(" ")[2].split("×")  # as in `float32 2×16×8×8`
    if len(sizes) != _MAPS or not inputs[0].startswith("float32"):
        return False
    return spec.downsampling == 2 if slot == "downsample" else keeps and parameters > 0


def list_sizes(slot: str, widths: Sequence[int]) -> list[dict[str, int]]:
    """Return the values at which a filler of this slot must work, for stages of these widths."""
    if slot == "downsample":
        pairs = list(pairwise(widths)) or [(widths[0], widths[0])]
        return [{"channels": before, "out_channels": after} for before, after in dict.fromkeys(pairs)]
    if slot == "stochastic_depth":
        return [{"channels": widths[-1]}]
    return [{"channels": width} for width in dict.fromkeys(widths)]


def list_widths(slot: str, model: ModelSettings) -> tuple[int, ...]:
    """Return the widths at which a slot is used in a network of this shape."""
    if slot in ("residual", "attention"):
        return tuple(width for width, depth in zip(model.widths, model.depths, strict=True) if depth)
    return model.widths


NONE = "none"

#: The name that leaves one of these two slots empty.
EMPTY_SLOTS = ("attention", "stochastic_depth")

#: Built-in parts by slot, target and arguments: of torch and torchvision, and three classes whose text is in `parts`.
_PARTS: dict[str, dict[str, tuple[str, str]]] = {
    "stem": {
        "conv3x3": ("make_conv", "in_channels, out_channels, 3"),
        "whitening": ("WhiteningStem", "in_channels, out_channels, make_activation, make_conv"),
        "whitened_patches": ("WhiteningStem", "in_channels, out_channels"),
    },
    "residual": {"preact_basic": ("PreActResidual", "channels, make_norm_activation, make_conv")},
    "attention": {},
    "downsample": {
        "strided_conv": ("make_conv", "channels, out_channels, 3, stride=2"),
        "avg_pool": ("nn.AvgPool2d", "2"),
        "max_pool": ("nn.MaxPool2d", "2"),
        "subsample": ("nn.MaxPool2d", "1, stride=2"),  # every second row and column: aliasing at the same arithmetic
    },
    "norm": {
        "batch_norm": ("nn.BatchNorm2d", "channels"),
        "group_norm": ("nn.GroupNorm", "min(32, channels // 8 or 1), channels"),
    },
    "activation": {"relu": ("nn.ReLU", "inplace=True"), "silu": ("nn.SiLU", ""), "gelu": ("nn.GELU", "")},
    "stochastic_depth": {"torchvision": ("StochasticDepth", 'rate, mode="row"')},
    "head": {
        "linear": ("nn.Sequential", "nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)"),
        "max_linear": ("MaxHead", "channels, classes"),
    },
}
_IMPORTS = {"StochasticDepth": ("from torchvision.ops import StochasticDepth",)}  # for targets outside of torch.nn

_OWN = {
    path.name.partition(".")[0]: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("parts/*.txt")
}

#: The built-in fillers of each slot; their code is emitted only if used.
BUILT_IN = {
    slot: {
        use: Filler(use, target, (build,), _OWN.get(target, ""), imports=_IMPORTS.get(target, ()))
        for use, (target, build) in parts.items()
    }
    for slot, parts in _PARTS.items()
}


def list_built_ins(slot: str) -> list[str]:
    """Return the names of a slot's built-in parts, including `none` if it may stay empty."""
    return sorted([*BUILT_IN[slot], *([NONE] if slot in EMPTY_SLOTS else [])])
