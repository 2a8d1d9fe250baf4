"""The options and events of a run, the outcomes of its classes, and the counts over its table.

All counts are derived from the rows of the table, so that anyone can recompute them.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from extract.model.options import ExtractOptions
from extract.resolve.discover import Selection
from extract.sources import PackageSource
from extract.specs.behavior import list_kinds
from manifests.records import LEVELS, Block, Level


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one class, and the (source, path) of every file that its block was extracted from."""

    row: Block
    closure_files: tuple[tuple[str, str], ...] = ()
    traced: Mapping[str, Any] | None = None  # result of `extract.proofs.trace_guest.trace_block`


@dataclass(frozen=True, slots=True)
class Options(ExtractOptions):
    """Everything that determines a run: the user's options, and the sources and names that they apply to."""

    corpus: str | None = None  # name of a shipped corpus or a JSON file; `quick` if there are no sources either
    sources: tuple[str, ...] = ()  # in addition to the corpus: NAME[@VERSION], git+URL[@REV] or a folder
    names: tuple[str, ...] = ()  # bare names, qualified names or block ids; all classes if empty
    jobs: int | None = None  # processes; default: all cores

    @property
    def selection(self) -> Selection:
        """The selection among the classes of the sources."""
        return Selection(self.names, self.paths, self.symbols, self.limit, self.start_from)

    def parameters(self) -> dict[str, Any]:
        """Return the options recorded in the manifest."""
        names = ("level", "seed", "corpus", "sources", "distributions", "as_of", "unsafe_no_sandbox")
        scope = ("paths", "symbols", "limit", "start_from")
        chat = {"max_tokens": self.chat_max_tokens}
        return {name: getattr(self, name) for name in (*names, *scope)} | {"chat": chat if self.chat else None}


@dataclass(slots=True)
class RunFacts:
    """Request, opened sources and events of a run."""

    options: Options
    sources: tuple[PackageSource, ...] = ()  # opened ones, by priority
    unopened: tuple[tuple[str, str], ...] = ()  # sources that could not be opened, with the reason
    notes: list[str] = field(default_factory=list)  # deviations from the request
    details: dict[str, Any] = field(default_factory=dict)  # additional facts for the manifest, the same in every run

    @property
    def targets(self) -> tuple[str, ...] | None:
        """The requested names, if the run was limited to names."""
        return self.options.names or None


def code_columns(code: str | None) -> dict[str, Any]:
    """Return the columns of a block that are derived from its code: `code`, `code_sha256`, `n_lines`."""
    if code is None:
        return {"code": None, "code_sha256": None, "n_lines": None}
    digest = hashlib.sha256(code.encode()).hexdigest()
    return {"code": code, "code_sha256": digest, "n_lines": code.count("\n") + (code[-1:] not in ("", "\n"))}


# --- counts -----------------------------------------------------------------------------------------------------------


def count_rows(rows: Sequence[Block], targets: Sequence[str] | None = None) -> dict[str, Any]:
    """Count by level, source, category, failure, fidelity and license, for the manifest and the report.

    `levels` counts the highest level of each block, so that it sums to `blocks`; `count_reached` counts a block at each
    level up to its own. Sources are in row order, everything else by size.

    Args: targets: the requested names, if the run was limited to names.
    """
    levels: Counter[str] = Counter(row.level for row in rows)
    categories = _count_levels(rows, "category")
    counts: dict[str, Any] = {
        "blocks": len(rows),
        "levels": {level: levels[level] for level in LEVELS},
        "reached": count_reached(levels),
        "sources": _count_levels(rows, "source"),
        "categories": dict(sorted(categories.items(), key=lambda item: (-sum(item[1].values()), item[0]))),
        "failures": sort_by_size(Counter(row.error_kind for row in rows if row.error_kind is not None)),
        "fidelity": sort_by_size(Counter(row.fidelity for row in rows if row.fidelity is not None)),
        "licenses": sort_by_size(Counter(row.license for row in rows)),
        "graphs": _count_graphs(rows),
        "lines": sum(row.n_lines or 0 for row in rows),
        "lean": _count_minimized(rows),
        "arguments": sort_by_size(
            Counter(row.arguments_from for row in rows if row.arguments_from and at_least(row.level, "forward"))
        ),
        "not_shown": sort_by_size(Counter(kind for row in rows for kind in list_kinds(row))),
    }
    if targets is not None:
        counts["targets"] = count_targets(rows, targets)
    return counts


def _count_graphs(rows: Sequence[Block]) -> dict[str, int]:
    """Count blocks with a graph, distinct graphs, and distinct graphs up to widths."""
    compared = [row for row in rows if row.graph is not None]
    distinct, widths = ({getattr(row, name) for row in compared} for name in ("graph", "graph_widths"))
    return {"blocks": len(compared), "distinct": len(distinct), "distinct_widths": len(widths)}


def _count_minimized(rows: Sequence[Block]) -> dict[str, int]:
    """Count blocks with a lean form, their lines in full and minimized, and running blocks without one."""
    compared = [row for row in rows if row.lean_lines is not None]
    without = sum(row.lean_error is not None for row in rows)
    lines, full_lines = (sum(getattr(row, name) or 0 for row in compared) for name in ("lean_lines", "n_lines"))
    return {"blocks": len(compared), "without": without, "lines": lines, "full_lines": full_lines}


def count_reached(levels: Mapping[str, int]) -> dict[str, int]:
    """Return how many blocks reached each level, from how many have it as their highest level."""
    counts = [levels.get(level, 0) for level in LEVELS]
    return {level: sum(counts[index:]) for index, level in enumerate(LEVELS)}


def at_least(level: str, required: str) -> bool:
    """Return whether a level is reached.

    Args: level: that of a block; required: the one asked about.
    Returns: True for the required level and all above it.
    """
    return LEVELS.index(level) >= LEVELS.index(required)


def count_targets(rows: Iterable[Block], targets: Sequence[str]) -> dict[str, Any]:
    """Count the names that match a block, and the levels of the blocks that they select (see `choose`)."""
    chosen = choose(rows)
    names = list(dict.fromkeys(targets))
    levels: Counter[str] = Counter(chosen[name].level for name in names if name in chosen)
    missing = [name for name in names if name not in chosen]
    return {"names": len(names), "found": levels.total(), "reached": count_reached(levels), "missing": missing}


def choose(rows: Iterable[Block]) -> dict[str, Block]:
    """Return the block that each name selects: the first with that id, else qualified name, else bare name."""
    chosen: dict[str, Block] = {}
    rows = list(rows)
    for column in ("block", "qualname", "name"):
        for row in rows:
            # Ids first: a bare name that is also the id of a block selects that block.
            chosen.setdefault(getattr(row, column), row)
    return chosen


_Z = NormalDist().inv_cdf(0.975)


def wilson(part: int, whole: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a proportion.

    Args: part, whole: the number of successes, and of all trials; `part` is at most `whole`.
    Returns: lower and upper bound within 0..1; (0, 1) if there are no trials.
    """
    if not whole:
        return 0.0, 1.0
    share, square = part / whole, _Z**2 / whole  # not with SciPy, whose import takes longer than all reports
    middle = share + square / 2
    spread = math.sqrt(max(share * (1 - share) * square + square**2 / 4, 0.0))
    low = 0.0 if part == 0 else (middle - spread) / (1 + square)
    high = 1.0 if part == whole else (middle + spread) / (1 + square)
    return low, high


def _count_levels(rows: Iterable[Block], column: str) -> dict[str, dict[str, int]]:
    by_group: dict[str, Counter[Level]] = {}
    for row in rows:
        by_group.setdefault(getattr(row, column), Counter())[row.level] += 1
    return {name: {level: counts[level] for level in LEVELS if counts[level]} for name, counts in by_group.items()}


def sort_by_size(numbers: Mapping[str, int]) -> dict[str, int]:
    """Sort by number, the largest first; ties by name."""
    return dict(sorted(numbers.items(), key=lambda item: (-item[1], item[0])))
