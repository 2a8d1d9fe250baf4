"""The blocks of an extraction folder that can fill a slot, told by running them in the sandbox, not by their names."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from manifests.records import Block, Spec
from train.binding import builds_of
from train.choosing import foreign_imports
from train.fitting import Answer, Fitter, Question, fitter_for
from train.glue import Filled, support_text
from train.library import open_library
from train.parts import PARTS
from train.slots import SLOTS, Filler, sizes_of, suits

WIDTHS = (32, 128, 256)


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

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)

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
    fitter: Fitter | None = None,
) -> list[Candidate]:
    """The blocks worth trying in a slot, those that fit first, then by parameters and id.

    Tried are those whose observed behaviour makes it possible; each does what the slot asks for at all these widths, or
    the reason why not is told. Outcomes are cached. `fitter` is what tries them; by default one of its own.

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
        fitter_for(fitter, unsafe=unsafe, jobs=jobs) as checker,
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
    norm, activation = PARTS["norm"]["batch_norm"], PARTS["activation"]["relu"]
    return support_text(Filled(norm.target, norm.builds[0]), Filled(activation.target, activation.builds[0]))


def _candidate(block: str, answer: Answer) -> Candidate:
    if answer["fits"]:
        seconds = float(answer["seconds"])
        return Candidate(block, True, None, answer["build"], answer["parameters"], answer["facts"], seconds)
    return Candidate(block, False, answer["reason"], answer["build"], None, {}, None)
