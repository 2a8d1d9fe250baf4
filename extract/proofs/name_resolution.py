"""Resolution accuracy: the share of the global names read by a block that are bound to the same objects as originally.

The originals are imported from their own packages, as for equivalence; `extract.proofs.name_resolution_guest` defines
what counts as the same.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from extract.arguments.messages import FilesToCompare, FileToCompare
from extract.proofs.validate import LIMITS_TOGETHER, BoundFile, MissingOriginal, group_by_package
from extract.resolve.index import FactsIndex
from lemur_core.files.markdown import code_span, count, percent, plain, plural, table
from lemur_core.sandbox import Failure
from lemur_core.sandbox.cached import CachedSandbox, SharedSandbox
from lemur_core.sandbox.stage import Retries, SandboxStage
from manifests.records import Block

MOST_OTHERS = 20  # names listed for one block
_COMPARED = tuple(FileToCompare.__annotations__)
_MAX_SHOWN = 10
_MAX_CHARACTERS = 160  # of a name and the reason


@dataclass(frozen=True, slots=True)
class BoundNames:
    """The numbers of names of a block that were compared, are the same, or are stubs; and those that differ."""

    compared: int
    same: int
    standin: int
    others: tuple[str, ...]


COMPARE_NAMES = SandboxStage[Mapping[str, BoundNames | Failure | MissingOriginal]](
    "extract.proofs.name_resolution_guest:compare_bindings",
    Mapping[str, BoundNames | Failure | MissingOriginal],
    LIMITS_TOGETHER,
    Retries.NONE,
)


def compare_bindings(
    files: Sequence[BoundFile],
    index: FactsIndex,
    *,
    jobs: int,
    runtime: Sequence[Path] = (),
    unsafe: bool = False,
    shared: SharedSandbox | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each block with the columns about its names, empty if it cannot be compared; results are cached by content.

    Args: runtime: folders with the requirements of self-contained files.
    Raises: UserError if no sandbox is available.
    """
    readable = sorted({folder for file in files for folder in file.folders} | set(runtime))

    def request(group: Sequence[BoundFile]) -> FilesToCompare:
        blocks = [cast(FileToCompare, {name: getattr(file, name) for name in _COMPARED}) for file in group]
        folders, ends = (list(map(str, paths)) for paths in (group[0].folders, runtime))
        return FilesToCompare(folders, ends, blocks, MOST_OTHERS)

    entries = [COMPARE_NAMES.guest]
    with CachedSandbox(index, workers=jobs, readable=readable, unsafe=unsafe, shared=shared, entries=entries) as box:
        groups = list(group_by_package(files))
        for block, answer in COMPARE_NAMES.run_groups(box, groups, request, lambda file: file.block).items():
            yield block, to_columns(answer)


def to_columns(answer: BoundNames | Failure | MissingOriginal) -> dict[str, Any]:
    """Return the columns for the names of a block; none if they could not be compared."""
    if not isinstance(answer, BoundNames):
        return {}
    numbers = {"names_compared": answer.compared, "names_same": answer.same, "names_standin": answer.standin}
    return {**numbers, "names_other": answer.others}


def section(rows: Sequence[Block], counts: Mapping[str, int]) -> list[str]:
    """Return the section of the report: the share of names bound to the same objects, and the most common others.

    Args: counts: the counts `names` of `extract.model.results.count_rows`.
    """
    if not counts["blocks"]:
        return []
    compared, same, stubs, blocks = (counts[name] for name in ("compared", "same", "standin", "blocks"))
    body = [
        ["global names that are read, per block and module", count(compared), "100 %"],
        ["bound to the same object as in the original", count(same), percent(same, compared)],
        ["bound to a stub", count(stubs), percent(stubs, compared)],
        ["bound to something else", count(compared - same - stubs), percent(compared - same - stubs, compared)],
        ["blocks compared", count(blocks), "100 %"],
        ["of these with all names bound to the same", count(counts["whole"]), percent(counts["whole"], blocks)],
    ]
    intro = (
        "Resolution accuracy: each name of the self-contained file compared with the class in its own package"
        " (`fn.__globals__`); columns `names_compared`, `names_same`, `names_standin`, `names_other`."
    )
    lines = ["## Names bound", "", intro, "", *table(["", "", "%"], body)]
    # Stubs are counted above, and are not faults.
    reasons = Counter(other for row in rows for other in row.names_other if not other.endswith("a stand-in"))
    if reasons:
        ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        most = ranked[:_MAX_SHOWN]
        shown = "; ".join(f"{code_span(name, _MAX_CHARACTERS)} ({plural(n, 'block')})" for name, n in most)
        more = f"; and {count(len(ranked) - _MAX_SHOWN)} more" if len(ranked) > _MAX_SHOWN else ""
        lines += [f"Bound to something else, most often: {shown}{plain(more)}.", ""]
    return lines
