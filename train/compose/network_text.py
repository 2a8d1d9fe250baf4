"""The text of a network's file after its blocks: one factory per slot, and LEMUR's contract around stem, stages, head.

The template `network.py.jinja` has the text that does not depend on the recipe, and the places for the rest.
"""

import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template

from train.model.recipe import Recipe
from train.model.slots import Filler

#: Imports for the calls of built-in parts.
PREAMBLE = "import torch\nimport torch.nn as nn\n"

_WRAP = 118
_DONE = "(done - WARMUP_FRACTION) / (1 - WARMUP_FRACTION)"


@cache
def _template() -> Template:
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    return environment.from_string(Path(__file__).with_name("network.py.jinja").read_text(encoding="utf-8"))


def support_text(norm: Filler, activation: Filler) -> str:
    """Return the text of the factories that can be passed to fillers, with their imports."""
    return f"{PREAMBLE}\n\n{_template().render(only_support=True, norm=norm, activation=activation)}"


def drops(filled: Mapping[str, Filler]) -> bool:
    """Return whether branches are dropped, by the slot's filler or by the residual block itself."""
    return "stochastic_depth" in filled or "rate" in filled["residual"].names


def network_imports(recipe: Recipe) -> list[str]:
    """Return the imports that `network_text` needs."""
    mixing = ["from torchvision.transforms import v2"] if _mixers(recipe) else []
    counting = ["import math"] if "math." in _rate_factor(recipe) else []
    return [*counting, *PREAMBLE.splitlines(), *mixing]


def network_text(recipe: Recipe, filled: Mapping[str, Filler], about: str) -> str:
    """Return the text after the blocks: constants, factories, `supported_hyperparameters`, `Net`."""
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
        rest=_rate_factor(recipe),
    )


def hyperparameters(recipe: Recipe, dropping: bool) -> dict[str, float]:
    """Return the recipe's values under the names that the network supports."""
    values = {"lr": recipe.training.learning_rate, "momentum": recipe.training.momentum}
    return values | ({"stochastic_depth": recipe.model.stochastic_depth_rate} if dropping else {})


def _branch(filled: Mapping[str, Filler]) -> dict[str, object]:
    """Return the template values for the end of a residual branch: the calls, the new last module, and the formula."""
    residual = filled["residual"]
    ends = ["make_attention(channels)"] if "attention" in filled else []
    formula = "attention(branch(x))" if ends else "branch(x)"
    if "stochastic_depth" in filled:
        ends.append("make_stochastic_depth(rate)")
        formula = f"stochastic_depth({formula})"
    end = residual.facts["branch_end"]
    attribute = all(part.isidentifier() for part in end.split("."))
    old = f"block.{end}" if attribute else f'block.get_submodule("{end}")'
    inner = ends if residual.facts["empty_end"] else [old, *ends]
    return {"ends": ends, "formula": formula, "attribute": attribute, "inner": inner}


def _rate_factor(recipe: Recipe) -> str:
    """Return the factor of the learning rate after the warm-up, as an expression of the fraction of steps done."""
    training = recipe.training
    done = _DONE if training.warmup_fraction else "done"
    rest = f"1 - {done}" if training.schedule == "linear" else f"0.5 * (1 + math.cos(math.pi * {done}))"
    return "1.0" if training.warmup_fraction == 1 else rest


def _mixers(recipe: Recipe) -> list[str]:
    """Return the constructor calls of the transforms that mix the images of a batch."""
    augmentation = recipe.augmentation
    if not augmentation.mix_probability:
        return []
    calls = []
    if augmentation.mixup_alpha:
        calls.append(f"v2.MixUp(alpha={augmentation.mixup_alpha!r}, num_classes=classes)")
    if augmentation.cutmix_alpha:
        calls.append(f"v2.CutMix(alpha={augmentation.cutmix_alpha!r}, num_classes=classes)")
    return calls
