"""Fidelity: whether a closed file's class and the original, imported from its own package, are one and the same.

The originals come from packages that are installed in a folder of their own, with what these need; they are imported
in the sandbox only, many classes of a package in one process, since the import is what takes the time. A process that
dies is split until the class that kills it is alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from extract.index import Index
from lemur_core.sandbox import Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox

BLOCK = "extract.probing.fidelity:sign_block"
ORIGINALS = "extract.probing.fidelity:sign_originals"
_TOGETHER = 40  # originals of one package in one process
_LIMITS = Limits(wall_seconds=120, cpu_seconds=60, memory_bytes=6 * 2**30)
_LIMITS_TOGETHER = Limits(wall_seconds=600, cpu_seconds=400, memory_bytes=8 * 2**30)
_PARTS = ("state", "values", "eval", "train", "after")


@dataclass(frozen=True, slots=True)
class Pair:
    """A block to compare with its original."""

    block: str
    name: str
    code: str
    module: str  # to import the original from
    origin: tuple[str, ...]  # packages that the closed file must do without
    folders: tuple[Path, ...]  # where the original and what it needs is installed
    arguments: Mapping[str, Any]
    digest: str = ""  # of the source that the original is of
    companions: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of it: null fidelity where there was nothing to compare with."""

    block: str
    fidelity: Literal["match", "mismatch"] | None
    detail: str = ""


def compare_all(
    pairs: Sequence[Pair], index: Index, *, jobs: int, runtime: Sequence[Path] = (), unsafe: bool = False
) -> Iterator[Comparison]:
    """Compare blocks with their originals; outcomes are kept by content.

    Args:
        runtime: folders with what closed files require.
    Raises: UserError if no sandbox can be had.
    """
    by_block = {pair.block: pair for pair in pairs}
    folders = sorted({folder for pair in pairs for folder in pair.folders} | set(runtime))
    with CachedSandbox(
        index, attempts=1, workers=jobs, readable=folders, unsafe=unsafe, entries=[BLOCK, ORIGINALS]
    ) as box:
        theirs = _originals(box, list(_groups(pairs)))
        missing = [pair for pair in pairs if "missing" in theirs[pair.block]]
        yield from (compare(pair.block, None, theirs[pair.block]) for pair in missing)
        present = [pair for pair in pairs if "missing" not in theirs[pair.block]]
        doubtful: dict[str, Mapping[str, Any]] = {}
        for outcome in box.run(Job(pair.block, BLOCK, _payload(pair, runtime), _LIMITS) for pair in present):
            ours = _value(outcome)
            found = compare(outcome.key, ours, theirs[outcome.key])
            if found.fidelity == "mismatch":
                doubtful[outcome.key] = ours
            else:
                yield found
        # Originals of one process share what their modules count and cache; alone, they answer for themselves.
        groups = [[by_block[block]] for block in doubtful]
        alone, again = _originals(box, groups), _originals(box, groups, stir=True)
        for block, ours in doubtful.items():
            found = compare(block, ours, alone[block])
            if found.fidelity == "mismatch" and alone[block] != again[block]:
                found = Comparison(block, None, "the original is not the same twice: it reads memory that was not set")
            yield found


def compare(block: str, ours: Mapping[str, Any] | None, theirs: Mapping[str, Any]) -> Comparison:
    """Whether two signatures are equal, or where they differ first."""
    if ours is None or "missing" in theirs:
        return Comparison(block, None, f"no original: {theirs.get('missing', '')}")
    if "error" in theirs:
        return Comparison(block, None, f"the original does not run: {theirs['error']}")
    if "error" in ours:
        return Comparison(block, "mismatch", f"only the original runs: {ours['error']}")
    differs = next((part for part in _PARTS if ours[part] != theirs[part]), None)
    if differs is None:
        return Comparison(block, "match")
    detail = f"{differs}: {_first_difference(ours[differs], theirs[differs])}"
    return Comparison(block, "mismatch", detail)


def _first_difference(ours: object, theirs: object) -> str:
    if isinstance(ours, list) and isinstance(theirs, list):
        pairs = zip([*ours, *[""] * len(theirs)], [*theirs, *[""] * len(ours)], strict=False)
        a, b = next(((a, b) for a, b in pairs if a != b), ("", ""))
        return f"{a or 'nothing'} here, {b or 'nothing'} there"
    return f"{str(ours)[:24]} here, {str(theirs)[:24]} there"


def _originals(box: CachedSandbox, groups: Sequence[list[Pair]], *, stir: bool = False) -> dict[str, Mapping[str, Any]]:
    """The signatures of the originals; a group whose process dies is halved."""
    found: dict[str, Mapping[str, Any]] = {}
    while groups:
        again: list[list[Pair]] = []
        jobs = (
            Job(str(place), ORIGINALS, {**_together(group), "stir": stir}, _LIMITS_TOGETHER)
            for place, group in enumerate(groups)
        )
        for outcome in box.run(jobs):
            group = groups[int(outcome.key)]
            if outcome.status is Status.OK:
                assert isinstance(outcome.value, dict)
                found |= outcome.value
            elif len(group) == 1:
                found[group[0].block] = {"error": _reason(outcome)}
            else:
                middle = len(group) // 2
                again += [group[:middle], group[middle:]]
        groups = again
    return found


def _together(group: Sequence[Pair]) -> dict[str, object]:
    return {
        "folders": [str(folder) for folder in group[0].folders],
        "blocks": [
            {
                "block": pair.block,
                "module": pair.module,
                "name": pair.name,
                "arguments": pair.arguments,
                "companions": [{k: c[k] for k in ("name", "qualname")} for c in pair.companions],
                "digest": pair.digest,
            }
            for pair in group
        ],
    }


def _groups(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Pairs of one package together, some at a time."""
    by_place: dict[tuple[Path, ...], list[Pair]] = {}
    for pair in pairs:
        by_place.setdefault(pair.folders, []).append(pair)
    for members in by_place.values():
        members.sort(key=lambda pair: pair.module)
        for start in range(0, len(members), _TOGETHER):
            yield members[start : start + _TOGETHER]


def _payload(pair: Pair, runtime: Sequence[Path]) -> dict[str, object]:
    return {
        "code": pair.code,
        "name": pair.name,
        "origin": list(pair.origin),
        "folders": [str(folder) for folder in runtime],
        "arguments": pair.arguments,
        "companions": list(pair.companions),
    }


def _value(outcome: Outcome) -> Mapping[str, Any]:
    if outcome.status is Status.OK:
        assert isinstance(outcome.value, dict)
        return outcome.value
    return {"error": _reason(outcome)}


def _reason(outcome: Outcome) -> str:
    return " ".join((outcome.error or outcome.status.value).split())[:200]
