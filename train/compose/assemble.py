"""A recipe and an extraction folder in, one network's file out: blocks found, checked, brought together, and run."""

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lemur_core.files.atomic import check_writable, write_text
from lemur_core.files.errors import UserError
from lemur_core.source.bundle import Part, bundle
from manifests.provenance import SLOT_HEADING, provenance_lines
from manifests.provenance.licenses import all_of
from manifests.records import Block, Ingredient
from train.compose.candidates import NETWORK, Prober, choose, met_a_cut, prober_for, question, settle
from train.compose.library import open_library
from train.compose.network_text import (
    PREAMBLE,
    Filled,
    drops,
    hyperparameters,
    network_imports,
    network_text,
    support_text,
)
from train.model.recipe import Network, Recipe
from train.model.slots import NONE, SLOTS, Filler, sizes_of, widths_of

_WRAP = 118
_OURS = "MIT"  # of what stands between the blocks

_IN_SHAPE, _CLASSES = (4, 3, 32, 32), 10  # of the trial at the end

#: Into the factories that the others may be handed.
_SHARED = ("norm", "activation")
_OTHERS = ("stem", "residual", "attention", "stochastic_depth", "downsample", "head")

_HEADING = "The network."
#: Of what was observed of a filler, what the text of the network depends on.
_TOLD = ("branch_end", "empty_end", "changes_channels")
_SLOT = re.compile(rf"^# {SLOT_HEADING}", re.MULTILINE)


#: Slots and what fills them, in the order of the file.
Fillers = dict[str, Filler]


def assemble(
    recipe: Recipe, folder: Path | None, *, unsafe: bool = False, prober: Prober | None = None, lean: bool = True
) -> Network:
    """One file with a network as the recipe describes it, checked by running it in the sandbox.

    Args:
        recipe: what fills each slot, the shape of the network, how it is trained.
        folder: an extraction folder; None where all slots are filled with built-in parts.
        unsafe: without walls, where there are none to be had.
        prober: what checks the blocks; by default one of its own.
        lean: use the lean forms of blocks, where these do; else all full ones.

    Raises: UserError for an unknown block (near ids are named), one that does not fit its slot (the reason is told),
        hyperparameters that LEMUR cannot hold, or a network that does not run.
    """
    library = open_library(folder) if folder is not None else None
    chosen = {slot: one for slot in (*_SHARED, *_OTHERS) if (one := choose(slot, recipe, library)) is not None}
    if not lean:
        chosen = {slot: one.full or one for slot, one in chosen.items()}
    with prober_for(prober, unsafe=unsafe) as checker:
        settled = _settle({slot: chosen[slot] for slot in _SHARED}, recipe, checker, PREAMBLE)
        others = {slot: filler for slot, filler in chosen.items() if slot in _OTHERS}
        settled |= _settle(others, recipe, checker, _support(recipe, settled))
        code, prm = _render(recipe, settled)
        network: dict[str, object] = {"code": code, "prm": prm, "in_shape": _IN_SHAPE, "out_shape": [_CLASSES]}
        (ran,) = checker.ask([network], entry=NETWORK)
        if not ran["fits"] and lean and met_a_cut(ran["reason"]):
            return assemble(recipe, folder, unsafe=unsafe, prober=checker, lean=False)
    if not ran["fits"]:
        name = recipe.model.name
        raise UserError(f"{name}: the assembled network does not run: {ran['reason']}; change its slots or widths")
    return Network(
        recipe.model.name,
        code,
        prm,
        tuple(_ingredient(slot, block) for slot in chosen if (block := settled[slot].block)),
        recipe,
    )


def assemble_to(out: Path, recipe: Recipe, folder: Path | None, *, unsafe: bool, force: bool) -> Network:
    """Assemble a recipe and write its file.

    Raises: UserError if it cannot be assembled or written, or the file is there and `force` is not given.
    """
    if out.exists() and (out.is_dir() or not force):
        raise UserError(f"{out}: exists already; choose another --out" + ("" if out.is_dir() else ", or add --force"))
    check_writable(out)
    assembled = assemble(recipe, folder, unsafe=unsafe)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, assembled.code)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    return assembled


def _settle(chosen: Fillers, recipe: Recipe, prober: Prober, support: str) -> Fillers:
    """The fillers with the arguments that fit. Raises: UserError for the first that does not fit."""
    widths = {slot: widths_of(slot, recipe.model) for slot in chosen}
    slots = {id(one): slot for slot, filler in chosen.items() for one in (filler, filler.full)}

    def ask(filler: Filler) -> dict[str, object]:
        slot = slots[id(filler)]
        return question(slot, filler, sizes_of(slot, widths[slot]), support, strict=filler.block is not None)

    settled = {}
    for slot, (filler, answer) in zip(chosen, settle(list(chosen.values()), ask, prober), strict=True):
        if not answer["fits"]:
            tried = ", ".join(map(str, widths[slot]))
            raise UserError(f"slots.{slot}: {filler.use} does not fit at widths {tried}: {answer['reason']}")
        settled[slot] = replace(filler, builds=(answer["build"],), facts=answer["facts"])
    return settled


def _support(recipe: Recipe, settled: Fillers) -> str:
    """The factories that the other fillers may be handed, with the blocks that they call."""
    bundled = bundle(_parts(settled))
    filled = _filled(recipe, settled, bundled.names)
    return f"{bundled.text}\n\n{support_text(filled['norm'], filled['activation'])}"


def _render(recipe: Recipe, settled: Fillers) -> tuple[str, dict[str, float]]:
    """The whole file, and the hyperparameters that it reads. Raises: UserError."""
    blocks, names = _blocks(recipe, settled)
    filled = _filled(recipe, settled, names)
    if "rate" in filled["residual"].names and "stochastic_depth" in filled:
        raise UserError('slots.residual drops its branch itself ("$rate"); set slots.stochastic_depth to "none"')
    prm = hyperparameters(recipe, drops(filled))
    if prm["lr"] > 1:
        raise UserError(f"training.learning_rate: {prm['lr']}; the hyperparameters of LEMUR lie in 0..1")
    text = network_text(recipe, filled, _about(settled))
    return f"{header(recipe, settled, prm)}\n{blocks}\n\n\n# {_HEADING}\n\n{text}", prm


def _blocks(recipe: Recipe, settled: Fillers) -> tuple[str, dict[str, str]]:
    """The imports of the whole file and the blocks of all slots, and what their classes are called there.

    The network stands first, so that its own names stay as they are: what a block calls so gets another name. Its text
    is cut out again, for it has yet to learn those names.
    """
    unnamed = _filled(recipe, settled, {slot: f"_filler_of_{slot}_" for slot in settled})
    extra = [line for filler in settled.values() for line in filler.imports]
    imports = "\n".join(dict.fromkeys([*network_imports(recipe), *extra]))
    network = Part("network", "Net", f"{imports}\n\n{network_text(recipe, unnamed, '')}", (_HEADING,))
    bundled = bundle([network, *_parts(settled)])
    head, _, rest = bundled.text.partition(f"# {_HEADING}\n")
    blocks = _SLOT.search(rest)
    return (head + (rest[blocks.start() :] if blocks else "")).strip("\n"), bundled.names


def _parts(settled: Fillers) -> list[Part]:
    found = [(slot, filler) for slot, filler in settled.items() if filler.code]
    return [Part(slot, filler.target, filler.code, provenance(slot, filler)) for slot, filler in found]


def _filled(recipe: Recipe, settled: Fillers, names: Mapping[str, str]) -> dict[str, Filled]:
    """The slots as the text of the network calls their fillers."""
    filled = {}
    for slot, filler in settled.items():
        known = {name: fact for name, fact in filler.facts.items() if name in _TOLD}
        float32 = getattr(recipe.slots, slot).float32
        filled[slot] = Filled(names.get(slot, filler.target), filler.builds[0], float32=float32, **known)
    return filled


def _about(settled: Fillers) -> str:
    """What the network is, in a sentence or two."""
    names = {slot: filler.block.name for slot, filler in settled.items() if filler.block}
    found = [f"{slot.replace('_', ' ')} {names[slot]}" for slot in _OTHERS if slot in names]
    return f"Its blocks: {', '.join(found)}." if found else "All its parts are built in."


def _ingredient(slot: str, block: Block) -> Ingredient:
    return Ingredient(slot=slot, **{name: getattr(block, name) for name in Ingredient.model_fields if name != "slot"})


def header(recipe: Recipe, fillers: Fillers, prm: Mapping[str, float]) -> str:
    """What the file is, as comments: no time, no path, so that the same recipe and blocks give the same bytes.

    The line `Prm:` is read back by `lemur train run NET.py`.
    """
    model = recipe.model
    stages = ", ".join(f"{depth} x {width}" for width, depth in zip(model.widths, model.depths, strict=True))
    lines = [
        f"{model.name}: a residual network, assembled from a recipe by `lemur train assemble`.",
        "",
        f"SPDX-License-Identifier: {all_of([_OURS, *(one.block.license for one in fillers.values() if one.block)])}",
        f"Recipe:  SHA-256 {recipe.sha256}",
        f"Prm:     {json.dumps(dict(prm), sort_keys=True)}",
        f"Stages:  {stages} (blocks x channels)",
        *(f"{slot:<17} {_used(fillers.get(slot))}" for slot in SLOTS),
    ]
    wrapped = [
        piece
        for line in lines
        for piece in ([line] if line.startswith("SPDX") else textwrap.wrap(line, _WRAP, break_on_hyphens=False)) or [""]
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in wrapped)


def _used(one: Filler | None) -> str:
    if one is None:
        return NONE
    return f"{one.use} ({one.block.license})" if one.block else f"{one.use} (built in)"


def provenance(slot: str, filler: Filler) -> tuple[str, ...]:
    """Where the block of a slot comes from, as lines of a comment."""
    block = filler.block
    if block is None:
        return (f"{SLOT_HEADING}{slot}: {filler.use}, built in.",)
    return provenance_lines(slot, block.name, block.model_dump())
