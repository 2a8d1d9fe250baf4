"""What a recipe writes for a slot, as a filler: a built-in part, or a block of the library with arguments to try."""

from dataclasses import dataclass

from lemur_core.files.errors import UserError
from manifests.records import Block
from train.binding import build_from_recipe, builds_of
from train.library import Library
from train.parts import NONE, PARTS, part_names
from train.recipe import Recipe, Slot
from train.slots import Filler


@dataclass(frozen=True, slots=True)
class Chosen:
    """What fills one slot: `block` is None for a built-in part."""

    slot: str
    filler: Filler
    block: Block | None

    @property
    def use(self) -> str:
        """Its name, as a recipe would write it."""
        return self.block.block if self.block else self.filler.use


def choose(slot: str, recipe: Recipe, library: Library | None) -> Chosen | None:
    """The filler of a slot; None for an empty one.

    Raises: UserError if nothing has that name, several have, or what has it cannot be part of a file that imports only
        torch and torchvision.
    """
    wanted: Slot = getattr(recipe.slots, slot)
    where = f"slots.{slot}"
    if wanted.use == NONE and NONE in part_names(slot):
        return None
    part = PARTS[slot].get(wanted.use)
    if part is not None:
        if wanted.arguments:
            raise UserError(f"{where}: {wanted.use!r} is built in and takes no arguments; leave them out")
        return Chosen(slot, part, None)
    try:
        block = library.find(wanted.use) if library is not None else None
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    if block is None or library is None:
        raise UserError(_unknown(where, slot, wanted.use, library))
    if block.code is None or block.block not in library.facts:
        raise UserError(
            f"{where}: {block.block} was not extracted: {block.error or 'it has no code'}; use another block"
        )
    if foreign := foreign_imports(block):
        raise UserError(
            f"{where}: {block.block} needs {foreign}; the network's file imports only torch: use another block"
        )
    if wanted.arguments:
        builds: tuple[str, ...] = (build_from_recipe(slot, wanted.arguments, f"{where}.arguments"),)
    else:
        builds = builds_of(slot, block, library.spec(block.block))
    return Chosen(slot, Filler(block.block, block.name, builds, block.code), block)


def foreign_imports(block: Block) -> str:
    """What a block needs beside the standard library, torch and torchvision; empty where it needs nothing."""
    found = list(block.requires)
    if block.code is not None and any(line.startswith(_NUMPY) for line in block.code.splitlines()):
        found.append("numpy")
    return ", ".join(found)


_NUMPY = ("import numpy", "from numpy")


def _unknown(where: str, slot: str, use: str, library: Library | None) -> str:
    known = f"built in: {', '.join(map(repr, part_names(slot)))}"
    if library is None:
        return f"{where}: no part {use!r}; {known}; for blocks, give --in DIR, a folder that `lemur extract` wrote"
    near = library.near(use)
    meant = f"did you mean {' or '.join(near)}?" if near else f"nothing in {library.folder.name} is called nearly so"
    return f"{where}: no block {use!r}; {meant} ({known})"
