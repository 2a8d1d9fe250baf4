"""Compare blocks with their originals: digests of state, outputs and gradients with the arguments of the search."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Unpack

from extract.arguments.messages import BlockRun, CallsToRun, CompanionCode, Original, Originals, make_uses
from extract.proofs.visit import SIGN, Signed
from extract.resolve.index import FactsIndex
from lemur_core.files.markdown import make_visible
from lemur_core.sandbox import Failure, Limits
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.sandbox.stage import SandboxOptions, SandboxStage, open_sandbox

_MAX_TOGETHER = 40  # originals of one package in one process
_REASON_CHARACTERS = 200
_MISSING_PACKAGE = ("raises ImportError", "raises ModuleNotFoundError")  # the original's package is incomplete here


@dataclass(frozen=True, slots=True)
class MissingOriginal:
    """Why an original cannot be imported, in one line."""

    missing: str

    def __post_init__(self) -> None:
        """Shorten the reason, and make control characters visible: foreign code determines the text."""
        object.__setattr__(self, "missing", make_visible(self.missing, _REASON_CHARACTERS))


Ours = Signed | Failure
Theirs = Signed | Failure | MissingOriginal

SIGN_ORIGINALS = SandboxStage[Mapping[str, Theirs]](
    "extract.proofs.equivalence_guest:sign_originals",
    Mapping[str, Theirs],
    Limits(wall_seconds=3600, cpu_seconds=1200, memory_bytes=8 * 2**30),
    retries=False,
)


@dataclass(frozen=True, slots=True)
class BlockWithOriginal:
    """A block to compare with its original."""

    block: str
    name: str
    code: str
    module: str  # the module to import for the original
    origin: tuple[str, ...]  # packages that the self-contained file must not import
    folders: tuple[Path, ...]  # with the original and its dependencies
    arguments: CallsToRun
    digest: str = ""  # of the source of the original
    companions: tuple[CompanionCode, ...] = ()
    original: str = ""  # the expression for the original in its module, if not its name

    def run(self, runtime: Sequence[Path]) -> BlockRun:
        """Return the block as guests run it. Args: runtime: folders with the requirements of self-contained files."""
        return BlockRun(self.code, self.name, self.origin, list(map(str, runtime)), self.arguments, self.companions)

    def as_original(self) -> Original:
        """Return the facts that guests need to run the original."""
        named = [{"name": item["name"], "qualname": item.get("qualname", "")} for item in self.companions]
        name = self.original or self.name
        return Original(
            block=self.block,
            module=self.module,
            name=name,
            arguments=self.arguments,
            companions=named,
            digest=self.digest,
        )


@dataclass(frozen=True, slots=True)
class EquivalenceResult:
    """The outcome of a comparison; `fidelity` is None if the block could not be compared."""

    block: str
    fidelity: Literal["match", "mismatch"] | None
    detail: str = ""


def compare_all(
    pairs: Sequence[BlockWithOriginal],
    index: FactsIndex,
    **sandbox: Unpack[SandboxOptions],
) -> Iterator[EquivalenceResult]:
    """Compare blocks with their originals; outcomes are cached by content.

    Raises: UserError if no sandbox is available.
    """
    by_block = {pair.block: pair for pair in pairs}
    folders = (folder for pair in pairs for folder in pair.folders)
    with open_sandbox(index, [SIGN, SIGN_ORIGINALS], sandbox, folders=folders) as box:
        theirs = _sign_originals(box, list(_group_by_package(pairs)))
        missing = {block: answer for block, answer in theirs.items() if isinstance(answer, MissingOriginal)}
        for block, answer in missing.items():
            yield EquivalenceResult(block, None, f"no original: {answer.missing}")
        runtime = sandbox.get("runtime", ())
        runs = {pair.block: make_uses(pair.run(runtime), {}, {}) for pair in pairs if pair.block not in missing}
        doubtful: dict[str, Ours] = {}
        for reply in SIGN.run(box, runs):
            ours = reply.answer or Failure(reply.reason(_REASON_CHARACTERS))
            comparison = compare(reply.key, ours, theirs[reply.key])
            if comparison.fidelity == "mismatch":
                doubtful[reply.key] = ours
            else:
                yield comparison
        # Originals in one process share module state such as counters and caches, so mismatches are repeated alone.
        groups = [[by_block[block]] for block in doubtful]
        alone, again = _sign_originals(box, groups), _sign_originals(box, groups, stir=True)
        for block, ours in doubtful.items():
            comparison = compare(block, ours, alone[block])
            if comparison.fidelity == "mismatch" and alone[block] != again[block]:
                why = "the original is not the same twice: it reads memory that was not set"
                comparison = EquivalenceResult(block, None, why)
            yield comparison


def compare(block: str, ours: Ours, theirs: Theirs) -> EquivalenceResult:
    """Compare two signatures; the detail states where they first differ."""
    if isinstance(theirs, MissingOriginal):
        return EquivalenceResult(block, None, f"no original: {theirs.missing}")
    if isinstance(theirs, Failure):
        return EquivalenceResult(block, None, f"the original does not run: {theirs.error}")
    if isinstance(ours, Failure):
        return EquivalenceResult(block, "mismatch", f"only the original runs: {ours.error}")
    # The text of a module may name the package that it is from.
    step = next((name for name in theirs.steps if name != "repr" and ours.steps.get(name) != theirs.steps[name]), None)
    if step is None:
        return EquivalenceResult(block, "match")
    # An import inside forward that fails here shows nothing about the copy.
    if theirs.steps[step] in _MISSING_PACKAGE:
        return EquivalenceResult(block, None, f"the original does not run: {step}: {theirs.steps[step]}")
    own, original = (sides.errors.get(step) or sides.steps.get(step, "nothing")[:24] for sides in (ours, theirs))
    return EquivalenceResult(block, "mismatch", f"{step}: {own} here, {original} there")


def _sign_originals(
    box: CachedSandbox, groups: Sequence[list[BlockWithOriginal]], *, stir: bool = False
) -> dict[str, Theirs]:
    """Return the signatures of the originals, by block."""

    def request(group: Sequence[BlockWithOriginal]) -> Originals:
        return Originals([str(folder) for folder in group[0].folders], [pair.as_original() for pair in group], stir)

    return SIGN_ORIGINALS.run_groups(box, groups, request, lambda pair: pair.block)


def _group_by_package(pairs: Iterable[BlockWithOriginal]) -> Iterator[list[BlockWithOriginal]]:
    """Yield groups of blocks of one package, limited in size."""
    by_folders: dict[tuple[Path, ...], list[BlockWithOriginal]] = {}
    for pair in pairs:
        by_folders.setdefault(pair.folders, []).append(pair)
    for members in by_folders.values():
        # Sorted, so that neighbors share imports and every run has the same groups.
        members.sort(key=lambda pair: pair.module)
        for start in range(0, len(members), _MAX_TOGETHER):
            yield members[start : start + _MAX_TOGETHER]
