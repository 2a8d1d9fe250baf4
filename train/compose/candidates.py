"""Fillers for slots: the ones that a recipe names, and the blocks of an extraction folder that could be used.

Whether a block fits is decided by running it in the sandbox, not by its name. Its constructor arguments are derived
from the names of its parameters and from recorded values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.sandbox import PRELOAD, Job, Limits, Outcome
from lemur_core.sandbox.cached import CachedSandbox, is_transient
from lemur_core.sandbox.stage import Retries, SandboxOptions, SandboxStage, open_sandbox
from manifests.records import Block
from train.compose.library import SlotLibrary, build_from_recipe, list_builds, open_library
from train.compose.network_text import Filled, support_text
from train.model.recipe import Recipe, Slot
from train.model.slots import BUILT_IN, NONE, SLOTS, Filler, list_built_ins, list_sizes, suits

WIDTHS = (32, 128, 256)
LIMITS = Limits(wall_seconds=120, cpu_seconds=45, memory_bytes=3 * 2**30)

_ERROR_CHARACTERS = 200
_NUMPY = ("import numpy", "from numpy")


def choose(slot: str, recipe: Recipe, library: SlotLibrary | None) -> Filler | None:
    """Return the filler that a recipe chooses for a slot; None for an empty slot.

    Raises: UserError if the name is unknown or ambiguous, or if the block cannot be part of a file that imports only
        torch and torchvision.
    """
    wanted: Slot = getattr(recipe.slots, slot)
    where = f"slots.{slot}"
    if wanted.use == NONE and NONE in list_built_ins(slot):
        return None
    part = BUILT_IN[slot].get(wanted.use)
    if part is not None:
        if wanted.arguments:
            raise UserError(f"{where}: {wanted.use!r} is built in and takes no arguments; leave them out")
        return part
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
        builds = list_builds(slot, block, library.spec(block.block))
    return _filler(library, block, builds)


def _filler(library: SlotLibrary, block: Block, builds: tuple[str, ...]) -> Filler:
    """Return a block with the arguments to try: its minimized form if there is one, then the full form."""
    full = library.full_block(block.block)
    forms = (block,) if full is None or foreign_imports(full) else (block, full)
    return Filler(block.block, block.name, builds, forms=forms)


def foreign_imports(block: Block) -> str:
    """Return the packages that a block needs besides the standard library, torch and torchvision; empty if none."""
    packages = list(block.requires)
    if block.code is not None and any(line.startswith(_NUMPY) for line in block.code.splitlines()):
        packages.append("numpy")
    return ", ".join(packages)


def _unknown(where: str, slot: str, use: str, library: SlotLibrary | None) -> str:
    known = f"built in: {', '.join(map(repr, list_built_ins(slot)))}"
    if library is None:
        return f"{where}: no part {use!r}; {known}; for blocks, pass --in DIR, a folder written by `lemur extract`"
    near = library.near(use)
    meant = f"did you mean {' or '.join(near)}?" if near else f"{library.folder.name} has no similar name"
    return f"{where}: no block {use!r}; {meant} ({known})"


@dataclass(frozen=True, slots=True)
class FillerToProbe:
    """Does a filler meet its slot's contract at these sizes? `support`: the text of the factories that builds name."""

    slot: str
    strict: bool
    codes: Sequence[str]
    target: str
    builds: Sequence[str]
    support: str
    sizes: Sequence[Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class NetworkToProbe:
    """Does an assembled network run and learn?"""

    code: str
    prm: Mapping[str, float]
    in_shape: Sequence[int]
    out_shape: Sequence[int]


@dataclass(frozen=True, slots=True)
class FitsSlot:
    """It does; the form and the build that fit, and what was observed of it."""

    fits: Literal[True]
    parameters: int
    build: str = ""
    form: Annotated[int, Field(ge=0, le=1)] = 0
    facts: Mapping[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FitsNot:
    """It does not; the reason, and the build that got furthest. `cut`: a minimized form may lack what is needed."""

    reason: str
    build: str = ""
    cut: bool = False
    fits: Literal[False] = False


Answer = FitsSlot | FitsNot
#: Probe a filler in its slot; probe an assembled network.
PROBE = SandboxStage[Answer]("train.compose.probe_guest:probe_filler", Answer, LIMITS, Retries.NONE)
NETWORK = SandboxStage[Answer]("train.compose.probe_guest:probe_network", Answer, LIMITS, Retries.NONE)


def open_prober(*, unsafe: bool = False, jobs: int = 1) -> CachedSandbox:
    """Return the sandbox of both stages; it starts with the first filler whose answer is not cached."""

    def usable(_job: Job, outcome: Outcome) -> bool:
        return not is_transient(outcome)

    options: SandboxOptions = {"unsafe": unsafe, "jobs": jobs}
    return open_sandbox(None, [PROBE, NETWORK], options, limits=LIMITS, usable=usable, preload=PRELOAD)


def probe(
    box: CachedSandbox, stage: SandboxStage[Answer], payloads: Sequence[FillerToProbe | NetworkToProbe]
) -> list[Answer]:
    """Return the answers of `train.compose.probe_guest`, in order. Raises: UserError if no sandbox is available."""
    replies = stage.run(box, {str(number): payload for number, payload in enumerate(payloads)})
    answers = {int(reply.key): reply.answer or FitsNot(reply.ending(_ERROR_CHARACTERS)) for reply in replies}
    return [answers[number] for number in range(len(payloads))]


def try_in_slots(
    box: CachedSandbox, fillers: Sequence[tuple[str, Filler, Sequence[int]]], support: str, label: str = ""
) -> list[tuple[Filler, Answer]]:
    """Try fillers in their slots, and return each, settled on the form and the arguments that fit, with its answer.

    Args: fillers: slot, filler, and the widths at which it must fit. support: the text of the factories. label: of the
        progress; none is shown if it is empty.
    """
    payloads = [
        FillerToProbe(
            slot,
            bool(filler.forms),
            filler.codes,
            filler.target,
            filler.builds,
            "\n".join([support, *filler.imports]),
            list_sizes(slot, widths),
        )
        for slot, filler, widths in fillers
    ]
    settled = []
    for (_, filler, _), answer in zip(fillers, probe(box, replace(PROBE, label=label), payloads), strict=True):
        if isinstance(answer, FitsSlot):
            forms = filler.forms[answer.form :][:1]
            filler = replace(filler, forms=forms, builds=(answer.build,), facts=dict(answer.facts))
        settled.append((filler, answer))
    return settled


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


def candidates(slot: str, folder: Path, widths: Sequence[int] = WIDTHS, *, unsafe: bool = False) -> list[SlotCandidate]:
    """Return the blocks worth trying in a slot: those that fit first, then by parameter count and id.

    Blocks are tried if their observed behavior makes a fit possible. Each result says that the block meets the slot's
    contract at all these widths, or why it does not. Outcomes are cached.

    Raises: UserError for an unknown slot or folder, or if no sandbox is available.
    """
    if slot not in SLOTS:
        raise UserError(f"slot {slot!r}: there are {', '.join(SLOTS)}")
    if not widths or min(widths) < 1:
        raise UserError(f"widths {list(widths)}: use whole numbers >= 1")
    library = open_library(folder)
    tried = []
    for spec in map(library.spec, library.facts):
        block = library.block(spec.block) if suits(slot, spec) else None
        if block is not None and block.code is not None and not foreign_imports(block):
            tried.append((slot, _filler(library, block, list_builds(slot, block, spec)), widths))
    results = []
    with open_prober(unsafe=unsafe, jobs=2) as box:
        for filler, answer in try_in_slots(box, tried, default_support(), f"{slot} candidates"):
            reason = answer.reason if isinstance(answer, FitsNot) else None
            parameters, facts = (answer.parameters, dict(answer.facts)) if isinstance(answer, FitsSlot) else (None, {})
            results.append(SlotCandidate(filler.use, answer.fits, reason, answer.build, parameters, facts))
    return sorted(results, key=lambda result: (not result.fits, result.parameters or 0, result.block))


def default_support() -> str:
    """Return the text of the factories with the default built-in norm and activation."""
    norm, activation = BUILT_IN["norm"]["batch_norm"], BUILT_IN["activation"]["relu"]
    return support_text(Filled(norm.target, norm.builds[0]), Filled(activation.target, activation.builds[0]))
