"""The text of a network's file after its blocks: a factory a slot, LEMUR's contract around stem, stages and head.

What does not depend on the recipe stands in `network.py.jinja`, and so does where the rest goes.
"""

import ast
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template

from train.model.recipe import Recipe

LINE = 120

#: What the calls of built-in parts need.
PREAMBLE = "import torch\nimport torch.nn as nn\n"

_WRAP = 118
_DONE = "(done - WARMUP_FRACTION) / (1 - WARMUP_FRACTION)"


@dataclass(frozen=True, slots=True)
class Filled:
    """One slot as it is filled: target and arguments of the call, in final names, and what was observed of it."""

    target: str
    arguments: str
    branch_end: str = ""
    empty_end: bool = False
    changes_channels: bool = False
    float32: bool = False

    @property
    def names(self) -> set[str]:
        """The names that the arguments use."""
        tree = ast.parse(f"call({self.arguments})")
        return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

    def call(self, before: str, after: str = "") -> str:
        """The call as a line between two texts, or wrapped with an argument a line where that is too long."""
        indent = " " * (len(before) - len(before.lstrip()))
        if self.float32:
            before, after = f"{before}InFloat32(", f"){after}"
        line = f"{before}{self.target}({self.arguments}){after}\n"
        if len(line) - 1 <= LINE:
            return line
        arguments = "".join(f"{indent}    {argument},\n" for argument in _split(self.arguments))
        return f"{before}{self.target}(\n{arguments}{indent}){after}\n"


def _split(arguments: str) -> list[str]:
    """The texts of the arguments of a call."""
    source = f"call({arguments})"
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call)
    found = [(node.col_offset, node.end_col_offset, "") for node in call.args]
    found += [(one.value.col_offset, one.value.end_col_offset, f"{one.arg}=") for one in call.keywords]
    text = source.encode()  # the columns count bytes
    return [name + text[start:end].decode() for start, end, name in found]


@cache
def _template() -> Template:
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    return environment.from_string(Path(__file__).with_name("network.py.jinja").read_text(encoding="utf-8"))


def support_text(norm: Filled, activation: Filled) -> str:
    """The factories that fillers may be handed, with the imports that they need."""
    return f"{PREAMBLE}\n\n{_template().render(only_support=True, norm=norm, activation=activation)}"


def drops(filled: Mapping[str, Filled]) -> bool:
    """Whether branches are dropped: by the slot's filler, or by the residual block itself."""
    return "stochastic_depth" in filled or "rate" in filled["residual"].names


def network_imports(recipe: Recipe) -> list[str]:
    """What `network_text` needs."""
    mixing = ["from torchvision.transforms import v2"] if _mixers(recipe) else []
    counting = ["import math"] if "math." in "".join(_rate_factor(recipe).values()) else []
    return [*counting, *PREAMBLE.splitlines(), *mixing]


def network_text(recipe: Recipe, filled: Mapping[str, Filled], about: str) -> str:
    """All that stands after the blocks: constants, factories, `supported_hyperparameters`, `Net`."""
    optional = {"attention": filled.get("attention"), "stochastic_depth": filled.get("stochastic_depth")}
    return _template().render(
        only_support=False,
        model=recipe.model,
        training=recipe.training,
        augmentation=recipe.augmentation,
        filled={**filled, **optional},
        norm=filled["norm"],
        activation=filled["activation"],
        float32=any(filler.float32 for filler in filled.values()),
        dropping=drops(filled),
        names=list(hyperparameters(recipe, drops(filled))),
        about=textwrap.fill(about, _WRAP, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False),
        mixers=_mixers(recipe),
        **_branch(filled),
        **_rate_factor(recipe),
    )


def hyperparameters(recipe: Recipe, dropping: bool) -> dict[str, float]:
    """The values of the recipe under the names that the network supports."""
    values = {"lr": recipe.training.learning_rate, "momentum": recipe.training.momentum}
    return values | ({"stochastic_depth": recipe.model.stochastic_depth_rate} if dropping else {})


def _branch(filled: Mapping[str, Filled]) -> dict[str, object]:
    """What ends a residual block's branch: the calls, what stands there then, and the whole as a formula."""
    residual = filled["residual"]
    ends = ["make_attention(channels)"] if "attention" in filled else []
    formula = "attention(branch(x))" if ends else "branch(x)"
    if "stochastic_depth" in filled:
        ends.append("make_stochastic_depth(rate)")
        formula = f"stochastic_depth({formula})"
    attribute = all(part.isidentifier() for part in residual.branch_end.split("."))
    old = f"block.{residual.branch_end}" if attribute else f'block.get_submodule("{residual.branch_end}")'
    inner = ends if residual.empty_end else [old, *ends]
    return {"ends": ends, "formula": formula, "attribute": attribute, "inner": inner}


def _rate_factor(recipe: Recipe) -> dict[str, str]:
    """The schedule: what the rate is multiplied with, by the part of all steps that is done: growing, then."""
    training = recipe.training
    done = _DONE if training.warmup_fraction else "done"
    cosine = f"0.5 * (1 + math.cos(math.pi * {done}))"
    rest = {"constant": "1.0", "linear": f"1 - {done}", "cosine": cosine, "onecycle": cosine}[training.schedule]
    warm = "done / WARMUP_FRACTION"
    if training.schedule == "onecycle":
        warm = "0.04 + 0.48 * (1 - math.cos(math.pi * done / WARMUP_FRACTION))"
    return {"warm": warm if training.warmup_fraction else "", "rest": "1.0" if training.warmup_fraction == 1 else rest}


def _mixers(recipe: Recipe) -> list[str]:
    """Constructor calls of what mixes the images of a batch."""
    augmentation = recipe.augmentation
    if not augmentation.mix_probability:
        return []
    found = []
    if augmentation.mixup_alpha:
        found.append(f"v2.MixUp(alpha={augmentation.mixup_alpha!r}, num_classes=classes)")
    if augmentation.cutmix_alpha:
        found.append(f"v2.CutMix(alpha={augmentation.cutmix_alpha!r}, num_classes=classes)")
    return found
