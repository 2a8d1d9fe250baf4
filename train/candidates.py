"""Fillers for slots: what a recipe writes there, and the blocks of an extraction folder that can be there.

Which blocks can is told by running them in the sandbox, not by their names.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from lemur_core.sandbox import Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import PASSING, CachedSandbox, reason_of
from manifests.records import Block, Spec
from train.binding import build_from_recipe, builds_of
from train.library import Library, open_library
from train.network_text import Filled, support_text
from train.recipe import Recipe, Slot
from train.slots import BUILT_IN, NONE, SLOTS, Filler, built_in_names, sizes_of, suits

WIDTHS = (32, 128, 256)
LIMITS = Limits(wall_seconds=120, cpu_seconds=45, memory_bytes=3 * 2**30)

#: In the sandbox: a filler in its slot, an assembled network.
PROBE, NETWORK = "train.probe:probe_filler", "train.probe:probe_network"
_ERROR_CHARACTERS = 200
_NUMPY = ("import numpy", "from numpy")


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
    if wanted.use == NONE and NONE in built_in_names(slot):
        return None
    part = BUILT_IN[slot].get(wanted.use)
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


def _unknown(where: str, slot: str, use: str, library: Library | None) -> str:
    known = f"built in: {', '.join(map(repr, built_in_names(slot)))}"
    if library is None:
        return f"{where}: no part {use!r}; {known}; for blocks, give --in DIR, a folder that `lemur extract` wrote"
    near = library.near(use)
    meant = f"did you mean {' or '.join(near)}?" if near else f"nothing in {library.folder.name} is called nearly so"
    return f"{where}: no block {use!r}; {meant} ({known})"


Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """Does this filler do what the slot asks for at these sizes, when its builds may name these factories?"""

    slot: str
    filler: Filler
    sizes: Sequence[dict[str, int]]
    support: str
    strict: bool = True

    @property
    def payload(self) -> dict[str, object]:
        """What the sandbox is given."""
        return {
            "slot": self.slot,
            "strict": self.strict,
            "code": self.filler.code,
            "target": self.filler.target,
            "builds": list(self.filler.builds),
            "support": "\n".join([self.support, *self.filler.imports]),
            "sizes": list(self.sizes),
        }


class Prober(CachedSandbox):
    """Tries fillers in their slots; its sandbox starts with the first one whose answer is not known."""

    def __init__(self, *, unsafe: bool = False, jobs: int = 1) -> None:
        super().__init__(
            entries=[PROBE, NETWORK],
            workers=jobs,
            limits=LIMITS,
            unsafe=unsafe,
            attempts=1,
            usable=lambda _job, outcome: outcome.status not in PASSING,
        )

    def ask(self, questions: Sequence[Question], advance: Callable[[int], None] = lambda _count: None) -> list[Answer]:
        """The answers, as `train.probe.probe_filler` gives them, in order; `advance` is called with the count done.

        Raises: UserError if no sandbox can be had.
        """
        return self._answers(PROBE, [question.payload for question in questions], advance)

    def probe_network(self, code: str, prm: dict[str, float], in_shape: Sequence[int], classes: int) -> Answer:
        """Whether an assembled network runs as LEMUR runs one, as `train.probe.probe_network` tells it."""
        payload: dict[str, object] = {"code": code, "prm": prm, "in_shape": list(in_shape), "out_shape": [classes]}
        return self._answers(NETWORK, [payload], lambda _count: None)[0]

    def _answers(
        self, entry: str, payloads: Sequence[dict[str, object]], advance: Callable[[int], None]
    ) -> list[Answer]:
        keys = [self.key_of(Job("", entry, payload)) for payload in payloads]
        jobs = {key: Job(key, entry, payload) for key, payload in zip(keys, payloads, strict=True)}
        answers: dict[str, Answer] = {}
        advance(len(keys) - len(jobs))
        for outcome in self.run(jobs.values()):
            answers[outcome.key] = _answer(outcome)
            advance(1)
        return [answers[key] for key in keys]


def _answer(outcome: Outcome) -> Answer:
    if outcome.status is Status.OK and isinstance(outcome.value, dict):
        return outcome.value
    return {"fits": False, "reason": f"{outcome.status.value}: {reason_of(outcome, _ERROR_CHARACTERS)}", "build": ""}


def prober_for(given: Prober | None, *, unsafe: bool, jobs: int = 1) -> contextlib.AbstractContextManager[Prober]:
    """The given one, which stays open, or a new one."""
    return contextlib.nullcontext(given) if given is not None else Prober(unsafe=unsafe, jobs=jobs)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One block that was tried in a slot, and what was seen.

    `binding`: the arguments that fit, or that came furthest; `facts`: what its slot's check observed; `seconds`: of one
    forward and backward pass on one thread, 8 maps of 16 x 16 at the last width.
    """

    block: str
    fits: bool
    reason: str | None
    binding: str
    parameters: int | None
    facts: dict[str, Any]
    seconds: float | None

    def line(self) -> str:
        """One line to print."""
        if not self.fits:
            return f"no   {self.block}: {self.reason}"
        facts = "".join(f", {_fact(name, value)}" for name, value in self.facts.items() if value not in ("", False))
        return f"fits {self.block}({self.binding}): {self.parameters:,} parameters{facts}"


def _fact(name: str, value: object) -> str:
    return name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {value}"


def candidates(
    slot: str,
    folder: Path,
    widths: Sequence[int] = WIDTHS,
    *,
    unsafe: bool = False,
    jobs: int = 2,
    prober: Prober | None = None,
) -> list[Candidate]:
    """The blocks worth trying in a slot, those that fit first, then by parameters and id.

    Tried are those whose observed behaviour makes it possible; each does what the slot asks for at all these widths, or
    the reason why not is told. Outcomes are cached. `prober` is what tries them; by default one of its own.

    Raises: UserError for an unknown slot or folder, or if no sandbox can be had.
    """
    if slot not in SLOTS:
        raise UserError(f"slot {slot!r}: there are {', '.join(SLOTS)}")
    if not widths or min(widths) < 1:
        raise UserError(f"widths {list(widths)}: give whole numbers from 1")
    library = open_library(folder)
    specs = [spec for spec in map(library.spec, library.facts) if suits(slot, spec)]
    blocks = [(library.block(spec.block), spec) for spec in specs]
    tried = [(block, spec) for block, spec in blocks if block.code is not None and not foreign_imports(block)]
    questions = [_question(slot, block, spec, widths) for block, spec in tried]
    with (
        progress(f"{slot} candidates", len(questions), "blocks") as advance,
        prober_for(prober, unsafe=unsafe, jobs=jobs) as checker,
    ):
        answers = checker.ask(questions, advance)
    found = [_candidate(block.block, answer) for (block, _), answer in zip(tried, answers, strict=True)]
    return sorted(found, key=lambda one: (not one.fits, one.parameters or 0, one.block))


def _question(slot: str, block: Block, spec: Spec, widths: Sequence[int]) -> Question:
    assert block.code is not None
    filler = Filler(block.block, block.name, builds_of(slot, block, spec), block.code)
    return Question(slot, filler, sizes_of(slot, widths), default_support())


def default_support() -> str:
    """The factories with the first norm and activation that are built in."""
    norm, activation = BUILT_IN["norm"]["batch_norm"], BUILT_IN["activation"]["relu"]
    return support_text(Filled(norm.target, norm.builds[0]), Filled(activation.target, activation.builds[0]))


def _candidate(block: str, answer: Answer) -> Candidate:
    if answer["fits"]:
        seconds = float(answer["seconds"])
        return Candidate(block, True, None, answer["build"], answer["parameters"], answer["facts"], seconds)
    return Candidate(block, False, answer["reason"], answer["build"], None, {}, None)
