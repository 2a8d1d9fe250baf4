"""`lemur sensitivity`: how many records the strict profile keeps, over a grid of lexical and structural thresholds.

The rows are read and their features computed once; every grid point then decides all records from scratch, as
`lemur curate` would with these thresholds and no minimum supports.
"""

import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from curate.model.corpus import CodeFile, LoadedRecords, read_corpus
from curate.model.options import CurateOptions
from curate.model.records import Records, build_records
from curate.sources import find_source_parents
from curate.sources.rows import RecordSource
from lemur_core.files.atomic import atomic_folder
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import count, percent, plain, plural, table
from lemur_core.files.progress import progress
from lemur_core.similarity.index import KeptSet, LexicalIndex, StructuralIndex, select
from lemur_core.similarity.join import Recall, enough_effort, exact_pairs
from lemur_core.similarity.minhash import Banding
from manifests.folders import frame
from manifests.folders.manifest import Manifest, Stopwatch, list_outputs, package_versions
from manifests.folders.tables import write_table

LEXICAL_GRID: tuple[float, ...] = (0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 1.00)
#: The value for no structural stage.
STRUCTURAL_GRID: tuple[float | None, ...] = (0.80, 0.85, 0.90, 0.95, 1.00, None)


@dataclass(frozen=True, slots=True)
class GridPoint:
    """The outcomes of all records at one pair of thresholds; the four counts add up to their number."""

    lexical_threshold: float
    structural_threshold: float | None  # None: no structural stage
    kept: int
    exact: int
    lexical: int
    structural: int


@dataclass(frozen=True, slots=True)
class Grid:
    """All points, by lexical, then structural threshold (None last), and LSH's recall at each lexical threshold.

    `records` is the number of distinct codes decided at each point.
    """

    points: list[GridPoint]
    recalls: dict[float, Recall]
    records: int

    @property
    def taus(self) -> list[float]:
        """The lexical thresholds."""
        return list(self.recalls)

    @property
    def kappas(self) -> list[float | None]:
        """The structural thresholds."""
        return list(dict.fromkeys(point.structural_threshold for point in self.points))

    @property
    def kept(self) -> dict[tuple[float, float | None], int]:
        """The records kept at each pair of thresholds."""
        return {(point.lexical_threshold, point.structural_threshold): point.kept for point in self.points}


def decide_grid(
    corpus: LoadedRecords, records: Records, lexical: Sequence[float], structural: Sequence[float | None]
) -> Grid:
    """Decide all records at every pair of thresholds.

    Args: lexical, structural: rising; None, for no structural stage, last.
    """
    features = corpus.features
    truth = exact_pairs(features, corpus.sets(records.order), min(lexical))
    # One index for all points: another threshold and an empty index cost less than a new one.
    index_of_structure = StructuralIndex(features.elements, 1.0)
    no_structure = StructuralIndex([np.empty(0, np.uint64)] * len(features.elements), 1.0)
    points, recalls = [], {}
    with progress("grid", len(lexical) * len(structural), "points") as advance:
        for tau in lexical:
            recalls[tau] = enough_effort(features, truth, tau)
            index_of_text = LexicalIndex(features, tau, Banding(recalls[tau].bands, recalls[tau].rows))
            for kappa in structural:
                second = no_structure if kappa is None else index_of_structure
                second.threshold = kappa or 1.0
                index_of_text.clear()
                second.clear()
                verdicts = select(records.order, KeptSet(features, index_of_text, second))
                stages = Counter(verdict.stage for verdict in verdicts.values())
                counts = (stages[None], stages["exact"], stages["lexical"], stages["structural"])
                points.append(GridPoint(tau, kappa, *counts))
                advance(1)
    return Grid(points, recalls, len(records.order))


def _text(threshold: float | None) -> str:
    return "off" if threshold is None else f"{threshold:.2f}" if round(threshold, 2) == threshold else f"{threshold:g}"


def _default() -> tuple[float, float | None]:
    """Return the default thresholds of `lemur curate`."""
    options = CurateOptions()
    return options.lexical_threshold, options.structural


def sensitivity_page(name: str, grid: Grid) -> str:
    """Return the Markdown of `report.md`."""
    default = grid.kept.get(_default())
    cells = []
    for tau in grid.taus:
        line = [_text(tau)]
        for kappa in grid.kappas:
            kept = grid.kept[tau, kappa]
            text = f"{count(kept)} ({percent(kept, grid.records)})"
            line.append(f"**{text}**" if (tau, kappa) == _default() else text)
        cells.append(line)
    bold = " The defaults of `lemur curate` are in bold." if default is not None else ""
    lines = [
        f"# Sensitivity of {plain(name)} to the thresholds",
        "",
        f"Records kept of {plural(grid.records, 'distinct code')}, by lexical threshold τ (rows) and structural"
        f" threshold κ (columns; off: no structural stage).{bold}",
        "",
        *table(["τ \\ κ", *map(_text, grid.kappas)], cells),
        _HOW_TO_READ,
        "",
    ]
    return "\n".join(lines)


_HOW_TO_READ = (
    "A threshold is the similarity from which two records count as near-duplicates, so a higher one nearly always keeps"
    " more. Down a column, one sees what the text decides; along a row, what the structure (the layers called, how"
    " often, with which sizes) adds. Where neighbouring numbers differ little, the snapshot depends little on the"
    " choice; where they jump, look at records between the two thresholds (`lemur explain`) before choosing. How many"
    " records are kept says nothing about how good they are."
)


_THRESHOLDS = [("lexical_threshold", pa.float64(), False), ("structural_threshold", pa.float64(), True)]
_GRID_SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=nullable) for name, kind, nullable in _THRESHOLDS]
    + [pa.field(name, pa.int64(), nullable=False) for name in ("kept", "exact", "lexical", "structural")]
)


def parse_threshold(text: str) -> float | None:
    """Parse a structural threshold, or `off` as None.

    Raises: UsageError if it is neither.
    """
    if text == "off":
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--structural {text}: must be a number from 0.5 to 1.0, or off") from None


def sensitivity(
    source: RecordSource,
    out: Path,
    *,
    lexical: Sequence[float] = LEXICAL_GRID,
    structural: Sequence[float | None] = STRUCTURAL_GRID,
    jobs: int | None = None,
    force: bool = False,
) -> Manifest:
    """Write the kept counts over the grid, as a table and a report, into the folder `out`.

    Args: structural: thresholds; None is a grid column without the structural stage.
    Returns: the manifest that was written; its counts hold the grid.
    Raises: UsageError for thresholds outside 0.5 to 1; UserError for a source without usable records, or an `out` that
        cannot be written.
    """
    taus, kappas = _in_order(lexical, "lexical"), _in_order(structural, "structural")
    options = CurateOptions()
    watch = Stopwatch()
    with atomic_folder(out, force=force) as folder:
        with tempfile.TemporaryDirectory(dir=folder) as scratch, CodeFile(Path(scratch) / "codes") as codes:
            corpus = read_corpus(source, codes, options.tokens, jobs)
        watch.lap("load and features")
        records = build_records(corpus, options)
        if not records.order:
            raise UserError(f"{source.name}: no row is usable; nothing to compare")
        grid = decide_grid(corpus, records, [tau for tau in taus if tau is not None], kappas)
        watch.lap("decide")
        points = [asdict(point) for point in grid.points]
        write_table(folder / "sensitivity.parquet", _GRID_SCHEMA, iter(points))
        (folder / "report.md").write_text(sensitivity_page(source.name, grid), encoding="utf-8")
        watch.lap("write")
        manifest = Manifest(
            kind="sensitivity",
            versions=package_versions(),
            parameters={"source": source.name, "lexical": taus, "structural": kappas, "tokens": options.tokens},
            inputs=source.inputs(),
            parents=find_source_parents(source),
            counts={"rows": corpus.rows.num_rows, "codes": grid.records, "grid": points},
            details={"lsh": {f"{tau:g}": recall.facts() for tau, recall in grid.recalls.items()}},
            outputs=list_outputs(folder, {"sensitivity.parquet": len(points)}),
            measured=watch.measure(),
        )
        return frame.finish(folder, manifest, grid_page, watch)


def grid_page(_folder: Path, manifest: Manifest) -> frame.Page:
    """Build the page of a grid: kept codes at each pair of thresholds."""
    grid, codes = manifest.counts["grid"], manifest.counts["codes"]
    rows = [
        (
            f"lexical {point['lexical_threshold']:g}, structural {point['structural_threshold'] or 'off'}",
            float(point["kept"]),
            float(codes),
            f"{count(point['kept'])}  {percent(point['kept'], codes)}",
        )
        for point in grid
    ]
    source, bars = manifest.parameters["source"], frame.bars("Kept codes", rows)
    lead = f"{plural(codes, 'code')} of {source} at {plural(len(grid), 'pair')} of thresholds."
    return frame.Page(f"Sensitivity of {source}", manifest.kind, lead, [bars])


def _in_order(thresholds: Sequence[float | None], name: str) -> list[float | None]:
    """Return each threshold once, rising, None last.

    Raises: UsageError if one lies outside 0.5 to 1, or there is none.
    """
    if not thresholds:
        raise UsageError(f"--{name}: no thresholds; give at least one, for example 0.9")
    for value in thresholds:
        if value is not None and not 0.5 <= value <= 1.0:
            raise UsageError(f"--{name} {value}: must lie between 0.5 and 1.0")
    return sorted(set(thresholds), key=lambda value: math.inf if value is None else value)
