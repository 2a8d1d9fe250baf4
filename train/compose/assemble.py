"""Assemble a network: take a recipe and an extraction folder, check the blocks, merge them into one file, run it.

After the blocks, the file has a factory for each slot, and LEMUR's contract around stem, stages and head. The template
`network.py.jinja` has the text that does not depend on the recipe, and the places for the rest.
"""

import contextlib
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template

from lemur_core.files import Json
from lemur_core.files.atomic import PathLike
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import comment_lines
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.source.bundle import Part, bundle
from manifests.provenance import SLOT_HEADING, provenance_lines
from manifests.provenance.licenses import combine_licenses
from manifests.records import Ingredient
from train.compose.candidates import (
    NETWORK,
    NetworkToProbe,
    choose,
    foreign_imports,
    list_builds,
    open_library,
    open_prober,
    probe,
    try_in_slots,
)
from train.model.recipe import Network, Recipe, Slots, to_recipe
from train.model.slots import BUILT_IN, NONE, SLOTS, Filler, list_widths, suits

_WRAP = 118
_OURS = "MIT"  # license of the text between the blocks

#: In the order of their parts in the file.
_ORDER = ("norm", "activation", "stem", "residual", "attention", "stochastic_depth", "downsample", "head")

_HEADING = "The network."
_STATED = set(Ingredient.model_fields) - {"slot"}
_SLOT = re.compile(rf"^# {SLOT_HEADING}", re.MULTILINE)


#: Fillers by slot, in the order of the file.
Fillers = dict[str, Filler]


def assemble(
    recipe: Recipe | PathLike,
    library: PathLike | None = None,
    *,
    unsafe_no_sandbox: bool = False,
    box: CachedSandbox | None = None,
) -> Network:
    """Compose a network of blocks: one closed Python file by LEMUR's contract, checked by running it in the sandbox.

    Args:
        recipe: a recipe, a TOML file, or the name of a shipped recipe.
        library: the extraction that holds the blocks; not needed for a recipe of built-in parts.
        unsafe_no_sandbox: run the blocks without the sandbox; only for code that you trust.
        box: a sandbox from `train.compose.candidates.open_prober`, which is left open; a new one by default.

    Returns:
        The network: its name, code, hyperparameters, blocks and recipe.

    Raises:
        UserError: if a block is unknown or does not fit its slot, or the network does not run.
        UsageError: if there is no recipe of this name.

    Example:
        ```python
        from train import assemble, find_recipe

        small = find_recipe("plain").changed(model__widths=[8, 8, 8], training__epochs=1, training__batch_size=32)
        network = assemble(small)
        print(network.code.splitlines()[0])
        ```
    """
    recipe = to_recipe(recipe)
    chosen = choose_fillers(recipe, None if library is None else Path(library))
    with open_prober(unsafe=unsafe_no_sandbox) if box is None else contextlib.nullcontext(box) as opened:
        settled = _settle(chosen, recipe, opened)
        code, prm = _render(recipe, settled)
        (ran,) = probe(opened, NETWORK, [NetworkToProbe(code, prm)])
    name = recipe.model.name
    if not ran.fits:
        raise UserError(f"{name}: the assembled network does not run: {ran.reason}; change its slots or widths")
    blocks = [(slot, block) for slot in chosen if (block := settled[slot].block)]
    stated = [{"slot": slot, **block.model_dump(include=_STATED)} for slot, block in blocks]
    return Network(name, code, prm, tuple(map(Ingredient.model_validate, stated)), recipe)


def choose_fillers(recipe: Recipe, folder: Path | None) -> Fillers:
    """Return what fills each slot of a recipe; nothing is run.

    Raises: UserError for an unknown block, or one without a folder.
    """
    library = open_library(folder) if folder is not None else None
    return {slot: filler for slot in _ORDER if (filler := choose(slot, recipe, library)) is not None}


def _settle(chosen: Fillers, recipe: Recipe, box: CachedSandbox) -> Fillers:
    """Return the fillers with the arguments that fit. Raises: UserError for the first that does not fit."""
    tried = [(slot, filler, list_widths(slot, recipe.model)) for slot, filler in chosen.items() if slot in SLOTS]
    settled, support = dict(chosen), support_text(chosen["norm"], chosen["activation"])
    for (slot, _, widths), (filler, answer) in zip(tried, try_in_slots(box, tried, support), strict=True):
        if not answer.fits:
            shown = ", ".join(map(str, widths))
            raise UserError(f"slots.{slot}: {filler.use} does not fit at widths {shown}: {answer.reason}")
        settled[slot] = filler
    return settled


def _render(recipe: Recipe, settled: Fillers) -> tuple[str, dict[str, float]]:
    """Return the whole file, and the hyperparameters that it reads. Raises: UserError."""
    blocks, names = _blocks(recipe, settled)
    filled = _fill_slots(recipe, settled, names)
    if "rate" in filled["residual"].names and "stochastic_depth" in filled:
        raise UserError('slots.residual drops its branch itself ("$rate"); set slots.stochastic_depth to "none"')
    prm = hyperparameters(recipe, drops(filled))
    if prm["lr"] > 1:
        raise UserError(f"training.learning_rate: {prm['lr']}; the hyperparameters of LEMUR lie in 0..1")
    found = {slot: filler.block for slot, filler in settled.items()}
    named = [f"{slot.replace('_', ' ')} {block.name}" for slot, block in found.items() if block]
    about = f"Its blocks: {', '.join(named)}." if named else "All its parts are built in."
    text = network_text(recipe, filled, about)
    return f"{header(recipe, settled, prm)}\n{blocks}\n\n\n# {_HEADING}\n\n{text}", prm


def _blocks(recipe: Recipe, settled: Fillers) -> tuple[str, dict[str, str]]:
    """Return the imports of the file with the blocks of all slots, and the names of their classes in it.

    The network's text comes first in the bundle, so that its names are kept and clashing names in blocks are changed.
    It is then removed, because it is rendered later with the final class names.
    """
    unnamed = _fill_slots(recipe, settled, {slot: f"_filler_of_{slot}_" for slot in settled})
    extra = [line for filler in settled.values() for line in filler.imports]
    imports = "\n".join(dict.fromkeys([*network_imports(recipe), *extra]))
    network = Part("network", "Net", f"{imports}\n\n{network_text(recipe, unnamed, '')}", (_HEADING,))
    bundled = bundle([network, *_parts(settled)])
    head, _, rest = bundled.text.partition(f"# {_HEADING}\n")
    blocks = _SLOT.search(rest)
    return (head + (rest[blocks.start() :] if blocks else "")).strip("\n"), bundled.names


def _parts(settled: Fillers) -> list[Part]:
    fillers = [(slot, filler) for slot, filler in settled.items() if filler.code]
    return [Part(slot, filler.target, filler.code, provenance(slot, filler)) for slot, filler in fillers]


def _fill_slots(recipe: Recipe, settled: Fillers, names: Mapping[str, str]) -> Fillers:
    """Return the fillers as the network's text calls them: by their final names, in float32 if the recipe says so."""
    return {
        slot: replace(filler, target=names.get(slot, filler.target), float32=getattr(recipe.slots, slot).float32)
        for slot, filler in settled.items()
    }


def header(recipe: Recipe, fillers: Fillers, prm: Mapping[str, float]) -> str:
    """Return the file's header comment; it has no time and no path, so the same recipe and blocks give the same bytes.

    `lemur train run NET.py` reads the line `Prm:`.
    """
    model = recipe.model
    stages = ", ".join(f"{depth} x {width}" for width, depth in zip(model.widths, model.depths, strict=True))
    licenses = combine_licenses([_OURS, *(filler.block.license for filler in fillers.values() if filler.block)])
    lines = [
        f"{model.name}: a residual network, assembled from a recipe by `lemur train assemble`.",
        "",
        f"SPDX-License-Identifier: {licenses}",
        f"Recipe:  SHA-256 {recipe.sha256}",
        f"Prm:     {json.dumps(dict(prm), sort_keys=True)}",
        f"Stages:  {stages} (blocks x channels)",
    ]
    for slot in Slots.model_fields:
        filler = fillers.get(slot)
        origin = f" ({filler.block.license if filler.block else 'built in'})" if filler else ""
        lines.append(f"{slot:<17} {filler.use if filler else NONE}{origin}")
    wrapped = [
        piece
        for line in lines
        for piece in ([line] if line.startswith("SPDX") else textwrap.wrap(line, _WRAP, break_on_hyphens=False)) or [""]
    ]
    return "".join(f"{line}\n" for line in comment_lines(wrapped))


def provenance(slot: str, filler: Filler) -> tuple[str, ...]:
    """Return the origin of a slot's block, as lines of a comment."""
    block = filler.block
    if block is None:
        return (f"{SLOT_HEADING}{slot}: {filler.use}, built in.",)
    return provenance_lines(slot, block.name, block.model_dump())


# --- the text of the network ------------------------------------------------------------------------------------------

#: Imports for the calls of built-in parts.
PREAMBLE = "import torch\nimport torch.nn as nn\n"

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


# --- the blocks that fit a slot ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotCandidate:
    """One block that was tried in a slot, with the outcome.

    `binding`: the arguments that fit, or that got furthest; `facts`: the observations of the slot's check.
    """

    block: str
    fits: bool
    reason: str | None
    binding: str
    parameters: int | None
    facts: Json

    def line(self) -> str:
        """Return one line to print."""
        if not self.fits:
            return f"no   {self.block}: {self.reason}"
        facts = {name.replace("_", " "): value for name, value in self.facts.items() if value not in ("", False)}
        texts = [f", {name}" if value is True else f", {name} {value}" for name, value in facts.items()]
        return f"fits {self.block}({self.binding}): {self.parameters:,} parameters{''.join(texts)}"


#: Where a block is tried that no recipe names.
WIDTHS = (32, 128, 256)


def list_candidates(
    slot: str, folder: Path, widths: Sequence[int] = WIDTHS, *, unsafe: bool = False
) -> list[SlotCandidate]:
    """Return the blocks worth trying in a slot: those that fit first, then by parameter count and id.

    Blocks are tried if their observed behavior makes a fit possible. Each result says that the block meets the slot's
    contract at all these widths, or why it does not. Outcomes are cached.

    Raises: UserError for an unknown folder, or if no sandbox is available.
    """
    library = open_library(folder)
    tried = []
    for spec in map(library.spec, library.facts):
        block = library.block(spec.block) if suits(slot, spec) else None
        if block is not None and block.code is not None and not foreign_imports(block):
            filler = Filler(block.block, block.name, list_builds(slot, block, spec), block=block)
            tried.append((slot, filler, widths))
    support = support_text(BUILT_IN["norm"]["batch_norm"], BUILT_IN["activation"]["relu"])
    with open_prober(unsafe=unsafe, jobs=2) as box:
        results = [
            SlotCandidate(filler.use, True, None, answer.build, answer.parameters, dict(answer.facts))
            if answer.fits
            else SlotCandidate(filler.use, False, answer.reason, answer.build, None, {})
            for filler, answer in try_in_slots(box, tried, support, f"{slot} candidates")
        ]
    return sorted(results, key=lambda result: (not result.fits, result.parameters or 0, result.block))
