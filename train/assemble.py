"""A recipe and an extraction folder in, one network's file out: blocks found, checked, brought together, and run."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lemur_core.files.atomic import check_writable, write_text
from lemur_core.files.errors import UserError
from lemur_core.source.bundle import Part, bundle
from manifests.licenses import all_of
from manifests.records import Ingredient
from train.candidates import Answer, Chosen, Prober, Question, choose, prober_for
from train.library import open_library
from train.network_text import PREAMBLE, Filled, drops, hyperparameters, network_imports, network_text, support_text
from train.recipe import Network, Recipe
from train.slots import NONE, SLOTS, sizes_of, widths_of

#: How the comment above the block of a slot begins.
SLOT_HEADING = "Slot "

_WRAP = 118
_OURS = "MIT"  # of what stands between the blocks

_IN_SHAPE, _CLASSES = (4, 3, 32, 32), 10  # of the trial at the end

#: Into the factories that the others may be handed.
_SHARED = ("norm", "activation")
_OTHERS = ("stem", "residual", "attention", "stochastic_depth", "downsample", "head")

_HEADING = "The network."
_SLOT = re.compile(rf"^# {SLOT_HEADING}", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Settled:
    """What fills a slot, with the one build that fits, and what was observed of it."""

    chosen: Chosen
    answer: Answer


def assemble(recipe: Recipe, folder: Path | None, *, unsafe: bool = False, prober: Prober | None = None) -> Network:
    """One file with a network as the recipe describes it, checked by running it in the sandbox.

    Args:
        recipe: what fills each slot, the shape of the network, how it is trained.
        folder: an extraction folder; None where all slots are filled with built-in parts.
        unsafe: without walls, where there are none to be had.
        prober: what checks the blocks; by default one of its own.

    Raises: UserError for an unknown block (near ids are named), one that does not fit its slot (the reason is told),
        hyperparameters that LEMUR cannot hold, or a network that does not run.
    """
    library = open_library(folder) if folder is not None else None
    chosen = [one for slot in (*_SHARED, *_OTHERS) if (one := choose(slot, recipe, library)) is not None]
    with prober_for(prober, unsafe=unsafe) as checker:
        settled = _settle([one for one in chosen if one.slot in _SHARED], recipe, checker, PREAMBLE)
        support = _support(recipe, settled)
        settled += _settle([one for one in chosen if one.slot in _OTHERS], recipe, checker, support)
        code, prm = _render(recipe, settled)
        ran = checker.probe_network(code, prm, _IN_SHAPE, _CLASSES)
    if not ran["fits"]:
        name = recipe.model.name
        raise UserError(f"{name}: the assembled network does not run: {ran['reason']}; change its slots or widths")
    return Network(recipe.model.name, code, prm, tuple(_ingredients(chosen)), recipe)


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


def _settle(chosen: Sequence[Chosen], recipe: Recipe, prober: Prober, support: str) -> list[_Settled]:
    """The fillers with the arguments that fit. Raises: UserError for the first that does not fit."""
    questions = []
    for one in chosen:
        sizes = sizes_of(one.slot, widths_of(one.slot, recipe.model))
        questions.append(Question(one.slot, one.filler, sizes, support, strict=one.block is not None))
    settled = []
    for one, answer in zip(chosen, prober.ask(questions), strict=True):
        if not answer["fits"]:
            widths = ", ".join(map(str, widths_of(one.slot, recipe.model)))
            raise UserError(f"slots.{one.slot}: {one.use} does not fit at widths {widths}: {answer['reason']}")
        filler = replace(one.filler, builds=(answer["build"],))
        settled.append(_Settled(replace(one, filler=filler), answer))
    return settled


def _support(recipe: Recipe, settled: Sequence[_Settled]) -> str:
    """The factories that the other fillers may be handed, with the blocks that they call."""
    bundled = bundle(_parts(settled))
    filled = _filled(recipe, settled, bundled.names)
    return f"{bundled.text}\n\n{support_text(filled['norm'], filled['activation'])}"


def _render(recipe: Recipe, settled: Sequence[_Settled]) -> tuple[str, dict[str, float]]:
    """The whole file, and the hyperparameters that it reads. Raises: UserError."""
    blocks, names = _blocks(recipe, settled)
    filled = _filled(recipe, settled, names)
    if "rate" in filled["residual"].names and "stochastic_depth" in filled:
        raise UserError('slots.residual drops its branch itself ("$rate"); set slots.stochastic_depth to "none"')
    prm = hyperparameters(recipe, drops(filled))
    if prm["lr"] > 1:
        raise UserError(f"training.learning_rate: {prm['lr']}; the hyperparameters of LEMUR lie in 0..1")
    text = network_text(recipe, filled, _about(settled))
    return f"{header(recipe, [one.chosen for one in settled], prm)}\n{blocks}\n\n\n# {_HEADING}\n\n{text}", prm


def _blocks(recipe: Recipe, settled: Sequence[_Settled]) -> tuple[str, dict[str, str]]:
    """The imports of the whole file and the blocks of all slots, and what their classes are called there.

    The network stands first, so that its own names stay as they are: what a block calls so gets another name. Its text
    is cut out again, for it has yet to learn those names.
    """
    unnamed = _filled(recipe, settled, {one.chosen.slot: f"_filler_of_{one.chosen.slot}_" for one in settled})
    extra = [line for one in settled for line in one.chosen.filler.imports]
    imports = "\n".join(dict.fromkeys([*network_imports(recipe), *extra]))
    network = Part("network", "Net", f"{imports}\n\n{network_text(recipe, unnamed, '')}", (_HEADING,))
    bundled = bundle([network, *_parts(settled)])
    head, _, rest = bundled.text.partition(f"# {_HEADING}\n")
    blocks = _SLOT.search(rest)
    return (head + (rest[blocks.start() :] if blocks else "")).strip("\n"), bundled.names


def _parts(settled: Sequence[_Settled]) -> list[Part]:
    chosen = [one.chosen for one in settled if one.chosen.filler.code]
    return [Part(one.slot, one.filler.target, one.filler.code, provenance(one)) for one in chosen]


def _filled(recipe: Recipe, settled: Sequence[_Settled], names: Mapping[str, str]) -> dict[str, Filled]:
    """The slots as the text of the network calls their fillers."""
    filled = {}
    for one in settled:
        slot, filler, facts = one.chosen.slot, one.chosen.filler, one.answer["facts"]
        known = {name: facts[name] for name in ("branch_end", "empty_end", "changes_channels") if name in facts}
        float32 = getattr(recipe.slots, slot).float32
        filled[slot] = Filled(names.get(slot, filler.target), filler.builds[0], float32=float32, **known)
    return filled


def _about(settled: Sequence[_Settled]) -> str:
    """What the network is, in a sentence or two."""
    names = {one.chosen.slot: one.chosen.block.name for one in settled if one.chosen.block}
    found = [f"{slot.replace('_', ' ')} {names[slot]}" for slot in _OTHERS if slot in names]
    return f"Its blocks: {', '.join(found)}." if found else "All its parts are built in."


def _ingredients(chosen: Sequence[Chosen]) -> list[Ingredient]:
    found = []
    for one in chosen:
        if one.block is not None:
            fields = {name: getattr(one.block, name) for name in Ingredient.model_fields if name != "slot"}
            found.append(Ingredient(slot=one.slot, **fields))
    return found


def header(recipe: Recipe, chosen: Sequence[Chosen], prm: Mapping[str, float]) -> str:
    """What the file is, as comments: no time, no path, so that the same recipe and blocks give the same bytes.

    The line `Prm:` is read back by `lemur train run NET.py`.
    """
    model = recipe.model
    by_slot = {one.slot: one for one in chosen}
    stages = ", ".join(f"{depth} x {width}" for width, depth in zip(model.widths, model.depths, strict=True))
    lines = [
        f"{model.name}: a residual network, assembled from a recipe by `lemur train assemble`.",
        "",
        f"SPDX-License-Identifier: {all_of([_OURS, *(one.block.license for one in chosen if one.block)])}",
        f"Recipe:  SHA-256 {recipe.sha256}",
        f"Prm:     {json.dumps(dict(prm), sort_keys=True)}",
        f"Stages:  {stages} (blocks x channels)",
        *(f"{slot:<17} {_used(by_slot.get(slot))}" for slot in SLOTS),
    ]
    wrapped = [
        piece
        for line in lines
        for piece in ([line] if line.startswith("SPDX") else textwrap.wrap(line, _WRAP, break_on_hyphens=False)) or [""]
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in wrapped)


def _used(one: Chosen | None) -> str:
    if one is None:
        return NONE
    return f"{one.use} ({one.block.license})" if one.block else f"{one.use} (built in)"


def provenance(one: Chosen) -> tuple[str, ...]:
    """Where the block of a slot comes from, as lines of a comment."""
    block = one.block
    if block is None:
        return (f"{SLOT_HEADING}{one.slot}: {one.use}, built in.",)
    return (
        f"{SLOT_HEADING}{one.slot}: {block.name}.",
        "",
        f"Block:   {block.block}",
        f"File:    {block.path}, lines {block.start_line}-{block.end_line}",
        f"SWHID:   {block.swhid}",
        f"Licence: {block.license}",
        f"SHA-256: {block.code_sha256} (of the extracted file)",
    )
