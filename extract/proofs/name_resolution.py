"""Resolution accuracy: of the global names that a block reads, how many its file binds to the same as its origin.

The originals are imported from their own packages, as for fidelity; `extract.proofs.name_resolution_guest` says what
counts as the same.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.proofs.validate import LIMITS_TOGETHER, collect_answers, group_by_package
from extract.resolve.index import Index
from lemur_core.files.markdown import code_span, count, percent, plain, plural, table
from lemur_core.sandbox import Job
from lemur_core.sandbox.cached import CachedSandbox
from manifests.records import Block

ENTRY = "extract.proofs.name_resolution_guest:compare_bindings"
MOST_OTHERS = 20  # names that are told of a block
_MAX_SHOWN = 10
_MAX_CHARACTERS = 160  # of a name and why it is not the same


@dataclass(frozen=True, slots=True)
class Bound:
    """A closed file to compare with its origin."""

    block: str
    name: str
    code: str
    module: str  # to import the original from
    folders: tuple[Path, ...]  # where the original and what it needs is installed
    digest: str  # of the source that the original is of
    standins: tuple[str, ...]  # names of the file that are ours


def compare_bindings(
    files: Sequence[Bound], index: Index, *, jobs: int, runtime: Sequence[Path] = (), unsafe: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """By block the columns that say what its names are bound to; none where nothing can be compared. Kept by content.

    Args: runtime: folders with what closed files require.
    Raises: UserError if no sandbox can be had.
    """
    readable = sorted({folder for file in files for folder in file.folders} | set(runtime))

    def job(place: int, group: Sequence[Bound]) -> Job:
        payload: dict[str, object] = {
            "folders": [str(folder) for folder in group[0].folders],
            "runtime": [str(folder) for folder in runtime],
            "told": MOST_OTHERS,
            "blocks": [
                {name: getattr(file, name) for name in ("block", "name", "code", "module", "digest", "standins")}
                for file in group
            ],
        }
        return Job(str(place), ENTRY, payload, LIMITS_TOGETHER)

    with CachedSandbox(index, attempts=1, workers=jobs, readable=readable, unsafe=unsafe, entries=[ENTRY]) as box:
        for block, answer in collect_answers(box, list(group_by_package(files)), job, lambda file: file.block).items():
            yield block, to_columns(answer)


def to_columns(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a block for what `extract.proofs.name_resolution_guest.compare_bindings` answered."""
    if "compared" not in answer:
        return {}
    return {
        "names_compared": answer["compared"],
        "names_same": answer["same"],
        "names_standin": answer["standin"],
        "names_other": tuple(answer["others"]),
    }


def section(rows: Sequence[Block], found: Mapping[str, int]) -> list[str]:
    """The report's lines: how many names are bound to the same, and what the others are.

    Args: found: the counts `names` of `extract.model.results.count_rows`.
    """
    if not found["blocks"]:
        return []
    compared, same, stubs, blocks = (found[name] for name in ("compared", "same", "standin", "blocks"))
    body = [
        ["global names that are read, of their block and module", count(compared), "100 %"],
        ["bound to the same as in the real import", count(same), percent(same, compared)],
        ["bound to a stand-in of ours", count(stubs), percent(stubs, compared)],
        ["bound to something else", count(compared - same - stubs), percent(compared - same - stubs, compared)],
        ["blocks compared", count(blocks), "100 %"],
        ["of these with all names bound to the same", count(found["whole"]), percent(found["whole"], blocks)],
    ]
    intro = (
        "Resolution accuracy: the closed file beside the original class, imported from its own package, name by name"
        " (`fn.__globals__`); columns `names_compared`, `names_same`, `names_standin`, `names_other`."
    )
    lines = ["## Names bound", "", intro, "", *table(["", "", "%"], body)]
    reasons = Counter(other for row in rows for other in row.names_other if not other.endswith("a stand-in"))
    if reasons:
        ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        shown = "; ".join(
            f"{code_span(name, _MAX_CHARACTERS)} ({plural(number, 'block')})" for name, number in ranked[:_MAX_SHOWN]
        )
        more = f"; and {count(len(ranked) - _MAX_SHOWN)} further ones" if len(ranked) > _MAX_SHOWN else ""
        lines += [f"Bound to something else, most often: {shown}{plain(more)}.", ""]
    return lines
