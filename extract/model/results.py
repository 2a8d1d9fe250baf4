"""What a run is asked for, what became of its classes, what it met on its way, and the counts of its table.

All counts are taken from the rows of the table, so that anyone can take them again.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from extract.resolve.discover import Selection
from extract.resolve.index import Policy
from extract.sources import Source
from manifests.records import LEVELS, Block, Level

if TYPE_CHECKING:
    from extract.chat.build import ChatOptions

Row = Mapping[str, Any]

#: The columns that are counted.
COLUMNS = (
    "block",
    "graph",
    "graph_widths",
    "name",
    "qualname",
    "source",
    "category",
    "level",
    "error_kind",
    "fidelity",
    "n_lines",
    "lean_lines",
    "lean_error",
    "license",
    "names_compared",
    "names_same",
    "names_standin",
)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one class, and the (source, path) of every file that its block was made from."""

    row: Block
    closure_files: tuple[tuple[str, str], ...] = ()
    traced: Mapping[str, Any] | None = None  # what `extract.proofs.trace_guest.trace_block` answered


@dataclass(frozen=True, slots=True)
class Options:
    """How an extraction is made."""

    corpus: str | None = None  # name of a shipped corpus or a JSON file; `quick` when there are no sources either
    sources: tuple[str, ...] = ()  # further ones: NAME[@VERSION], git+URL[@REV] or a folder
    selection: Selection = field(default_factory=Selection)
    index: Policy = "missing"  # what becomes of files that are not in the index yet
    level: Level = "backward"  # the rung that blocks are taken to
    retry_failed: bool = False  # run blocks again that failed in an earlier run
    fidelity: bool = False  # compare blocks that run with their originals, installed apart
    jobs: int | None = None  # processes; all cores by default
    unsafe: bool = False  # run foreign code without the walls of the sandbox; only for code that you trust
    timings: bool = False  # write each block's seconds into the table, whose bytes are then no longer reproducible
    seed: int = 42  # draws which specs are held out, and the wording of conversations
    chat: "ChatOptions | None" = None  # how conversations are made; None for none

    def parameters(self) -> dict[str, Any]:
        """What the manifest states of them."""
        names = ("level", "seed", "corpus", "sources")
        scope = ("repositories", "paths", "symbols", "limit", "start_from")
        stated = {name: getattr(self, name) for name in names} | {name: getattr(self.selection, name) for name in scope}
        chat = None if self.chat is None else asdict(self.chat)
        return {**stated, "chat": chat, "unsafe_no_sandbox": self.unsafe}


@dataclass(slots=True)
class RunFacts:
    """What was asked, what was opened, and what the run met on its way."""

    options: Options
    sources: tuple[Source, ...] = ()  # that were opened, by priority
    unopened: tuple[tuple[str, str], ...] = ()  # sources that were not, and why
    notes: list[str] = field(default_factory=list)  # what could not be done as asked
    index_hits: int = 0  # files whose facts were in the index
    index_parsed: int = 0  # files that were parsed for it
    validations_reused: int = 0  # blocks whose outcome was known from an earlier run
    validations_run: int = 0
    details: dict[str, Any] = field(default_factory=dict)  # further facts for the manifest, the same in every run

    @property
    def targets(self) -> tuple[str, ...] | None:
        """The names that were asked for, where the run was over names."""
        return self.options.selection.names or None


def code_columns(code: str | None) -> dict[str, Any]:
    """The columns of a block that follow from its code: `code`, `code_sha256`, `n_lines`."""
    if code is None:
        return {"code": None, "code_sha256": None, "n_lines": None}
    digest = hashlib.sha256(code.encode()).hexdigest()
    return {"code": code, "code_sha256": digest, "n_lines": code.count("\n") + (code[-1:] not in ("", "\n"))}


# --- counts -----------------------------------------------------------------------------------------------------------


def count_rows(rows: Sequence[Row], targets: Sequence[str] | None = None) -> dict[str, Any]:
    """Counts by rung, source, category, failure, fidelity and licence, for the manifest and the report.

    `levels` counts the highest rungs, so that it adds up to `blocks`; `reached` counts a block on each rung up to its
    own. Sources stand in the order of the rows, everything else by size.

    Args: targets: the names that were asked for, where the run was over names.
    """
    levels = Counter(row["level"] for row in rows)
    found: dict[str, Any] = {
        "blocks": len(rows),
        "levels": {level: levels[level] for level in LEVELS},
        "reached": reached(levels),
        "sources": _levels_by(rows, "source"),
        "categories": dict(
            sorted(_levels_by(rows, "category").items(), key=lambda item: (-sum(item[1].values()), item[0]))
        ),
        "failures": by_size(Counter(row["error_kind"] for row in rows if row["error_kind"] is not None)),
        "fidelity": by_size(Counter(row["fidelity"] for row in rows if row["fidelity"] is not None)),
        "licenses": by_size(Counter(row["license"] for row in rows)),
        "graphs": _graphs(rows),
        "lines": sum(row["n_lines"] or 0 for row in rows),
        "lean": _lean(rows),
        "names": _names(rows),
    }
    if targets is not None:
        found["targets"] = count_targets(rows, targets)
    return found


def _graphs(rows: Sequence[Row]) -> dict[str, int]:
    """How many blocks have a graph, and how many different ones there are, also up to widths."""
    known = [row for row in rows if row["graph"] is not None]
    distinct = {name: len({row[name] for row in known}) for name in ("graph", "graph_widths")}
    return {"blocks": len(known), "distinct": distinct["graph"], "distinct_widths": distinct["graph_widths"]}


def _lean(rows: Sequence[Row]) -> dict[str, int]:
    """How many blocks have a lean form, their lines in full and lean, and how many that run have none."""
    known = [row for row in rows if row["lean_lines"] is not None]
    return {
        "blocks": len(known),
        "without": sum(row["lean_error"] is not None for row in rows),
        "lines": sum(row["lean_lines"] for row in known),
        "full_lines": sum(row["n_lines"] for row in known),
    }


def _names(rows: Sequence[Row]) -> dict[str, int]:
    """How many blocks were compared with the real import name by name, and over all of them, their names."""
    known = [row for row in rows if row["names_compared"]]
    sums = {name: sum(row[f"names_{name}"] or 0 for row in known) for name in ("compared", "same", "standin")}
    return {"blocks": len(known), "whole": sum(row["names_same"] == row["names_compared"] for row in known), **sums}


def reached(levels: Mapping[str, int]) -> dict[str, int]:
    """How many stand on each rung or above it, from how many have it as their highest."""
    counts = [levels.get(level, 0) for level in LEVELS]
    return {level: sum(counts[place:]) for place, level in enumerate(LEVELS)}


def at_least(level: str, rung: str) -> bool:
    """Whether a rung is reached."""
    return LEVELS.index(level) >= LEVELS.index(rung)


def count_targets(rows: Iterable[Row], targets: Sequence[str]) -> dict[str, Any]:
    """How many names are those of a block, and how far the blocks came that they choose.

    A name chooses the first block that is called so: by its id, by its qualified name, or by its bare name.
    """
    chosen = choose(rows)
    names = list(dict.fromkeys(targets))
    levels = Counter(chosen[name]["level"] for name in names if name in chosen)
    missing = [name for name in names if name not in chosen]
    return {"names": len(names), "found": levels.total(), "reached": reached(levels), "missing": missing}


def choose(rows: Iterable[Row]) -> dict[str, Row]:
    """The block that each name stands for: the first that is called so by id, else by qualified, else by bare name."""
    chosen: dict[str, Row] = {}
    rows = list(rows)
    for column in ("block", "qualname", "name"):
        for row in rows:
            chosen.setdefault(row[column], row)
    return chosen


def wilson(part: int, whole: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a proportion; (0, 1) of nothing."""
    from scipy.stats import binomtest  # here, because it takes longer to load than everything else in this file

    if not whole:
        return 0.0, 1.0
    interval = binomtest(part, whole).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


def _levels_by(rows: Iterable[Row], column: str) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[Level]] = {}
    for row in rows:
        found.setdefault(row[column], Counter())[row["level"]] += 1
    return {name: {level: counts[level] for level in LEVELS if counts[level]} for name, counts in found.items()}


def by_size(numbers: Mapping[str, int]) -> dict[str, int]:
    """The largest first; those of one size by name."""
    return dict(sorted(numbers.items(), key=lambda item: (-item[1], item[0])))
