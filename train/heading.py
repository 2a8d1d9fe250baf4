"""The comments of a network's file: what it is, and where each block comes from."""

import json
import textwrap
from collections.abc import Mapping, Sequence

from manifests.licenses import all_of
from train.candidates import Chosen
from train.recipe import Recipe
from train.slots import NONE, SLOTS

#: How the comment above the block of a slot begins.
SLOT_HEADING = "Slot "

_WRAP = 118
_OURS = "MIT"  # of what stands between the blocks


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
