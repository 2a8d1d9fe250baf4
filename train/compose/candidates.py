"""Fillers for slots: the ones that a recipe names, and the blocks of an extraction folder that could be used.

Whether a block fits is decided by running it in the sandbox, not by its name. Its constructor arguments are derived
from the names of its parameters and from recorded values.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from lemur_core.sandbox import Limits
from lemur_core.sandbox.cached import CachedSandbox, is_transient
from lemur_core.sandbox.stage import Retries, SandboxStage
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
    """Return a block with the arguments to try: its minimized form if there is one, then with the full form too."""
    assert block.code is not None
    filler = Filler(block.block, block.name, builds, block.code, block=block)
    uncut = library.full_block(block.block)
    if uncut is None or uncut.code is None or foreign_imports(uncut):
        return filler
    return replace(filler, full=replace(filler, code=uncut.code, block=uncut))


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
    code: str
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
    """It does; the build that fits, and what was observed of it."""

    fits: Literal[True]
    parameters: int
    build: str = ""
    facts: Mapping[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FitsNot:
    """It does not; the reason, and the build that got furthest."""

    reason: str
    build: str = ""
    fits: Literal[False] = False


Answer = FitsSlot | FitsNot
#: Probe a filler in its slot; probe an assembled network.
PROBE = SandboxStage[Answer]("train.compose.probe_guest:probe_filler", Answer, LIMITS, Retries.NONE)
NETWORK = replace(PROBE, guest="train.compose.probe_guest:probe_network")


def question(
    slot: str, filler: Filler, widths: Sequence[int], support: str, *, strict: bool = True
) -> tuple[Filler, FillerToProbe]:
    """Return a filler and the request about it. Args: support: the text of the factories that the builds may name."""
    support, sizes = "\n".join([support, *filler.imports]), list_sizes(slot, widths)
    return filler, FillerToProbe(slot, strict, filler.code, filler.target, filler.builds, support, sizes)


def settle(
    questions: Sequence[tuple[Filler, FillerToProbe]],
    prober: "Prober",
    advance: Callable[[int], None] = lambda _count: None,
) -> list[tuple[Filler, Answer]]:
    """Return the fillers with their answers, replacing a minimized form that fails with the full form if that fits.

    Raises: UserError if no sandbox is available.
    """
    replies = prober.ask([request for _, request in questions], advance)
    answers = [(filler, answer) for (filler, _), answer in zip(questions, replies, strict=True)]
    # Only in a second round, because most minimized forms fit, and each request takes seconds.
    again = {
        place: filler.full
        for place, (filler, answer) in enumerate(answers)
        if filler.full is not None and isinstance(answer, FitsNot) and is_minimization_error(answer.reason)
    }
    replies = prober.ask([replace(questions[place][1], code=filler.code) for place, filler in again.items()])
    for (place, filler), answer in zip(again.items(), replies, strict=True):
        if answer.fits:
            answers[place] = filler, answer
    return answers


def is_minimization_error(reason: str) -> bool:
    """Return whether code removed from a minimized form (a branch, a table entry, a method) may explain an error."""
    return any(word in reason for word in ("left out of the lean form", "KeyError", "AttributeError"))


class Prober(CachedSandbox):
    """Probes fillers in their slots; its sandbox starts with the first filler whose answer is not cached."""

    def __init__(self, *, unsafe: bool = False, jobs: int = 1) -> None:
        super().__init__(
            entries=[PROBE.guest, NETWORK.guest],
            workers=jobs,
            limits=LIMITS,
            unsafe=unsafe,
            attempts=1,
            usable=lambda _job, outcome: not is_transient(outcome),
        )

    def ask(
        self,
        payloads: Sequence[FillerToProbe | NetworkToProbe],
        advance: Callable[[int], None] = lambda _count: None,
        *,
        stage: SandboxStage[Answer] = PROBE,
    ) -> list[Answer]:
        """Return the answers of `train.compose.probe_guest`, in order; `advance` is called with the number finished.

        Raises: UserError if no sandbox is available.
        """
        keys = [self.key_of(stage.job("", payload)) for payload in payloads]
        jobs = {key: stage.job(key, payload) for key, payload in zip(keys, payloads, strict=True)}
        answers: dict[str, Answer] = {}
        advance(len(keys) - len(jobs))
        for reply in stage.run_jobs(self, jobs.values()):
            answers[reply.key] = reply.answer or FitsNot(reply.ending(_ERROR_CHARACTERS))
            advance(1)
        return [answers[key] for key in keys]


def prober_for(prober: Prober | None, *, unsafe: bool) -> contextlib.AbstractContextManager[Prober]:
    """Return a context manager of `prober`, which it leaves open, or of a new one, which it closes."""
    return contextlib.nullcontext(prober) if prober is not None else Prober(unsafe=unsafe)


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
            tried.append(_filler(library, block, list_builds(slot, block, spec)))
    support = default_support()
    questions = [question(slot, filler, widths, support) for filler in tried]
    with (
        progress(f"{slot} candidates", len(tried), "blocks") as advance,
        Prober(unsafe=unsafe, jobs=2) as checker,
    ):
        answers = settle(questions, checker, advance)
    results = [_candidate(filler.use, answer) for filler, answer in answers]
    return sorted(results, key=lambda result: (not result.fits, result.parameters or 0, result.block))


def default_support() -> str:
    """Return the text of the factories with the default built-in norm and activation."""
    norm, activation = BUILT_IN["norm"]["batch_norm"], BUILT_IN["activation"]["relu"]
    return support_text(Filled(norm.target, norm.builds[0]), Filled(activation.target, activation.builds[0]))


def _candidate(block: str, answer: Answer) -> SlotCandidate:
    if isinstance(answer, FitsSlot):
        return SlotCandidate(block, True, None, answer.build, answer.parameters, dict(answer.facts))
    return SlotCandidate(block, False, answer.reason, answer.build, None, {})
