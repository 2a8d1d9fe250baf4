"""`lemur sensitivity`: source in, a folder with the grid out."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from curate.corpus import CodeFile, read_corpus
from curate.options import CurateOptions
from curate.records import build_records
from curate.rows import Source
from curate.sensitivity.grid import LEXICAL_GRID, STRUCTURAL_GRID, Grid, GridPoint, decide_grid
from curate.sensitivity.page import sensitivity_page, write_figure
from curate.sources.parents import parents_of
from lemur_core.files.atomic import atomic_folder
from lemur_core.files.errors import UsageError, UserError
from lemur_core.similarity.tokens import Detail
from manifests.manifest import Input, Manifest, Stopwatch, list_outputs, package_versions, write_manifest
from manifests.tables import write_table

_THRESHOLDS = [("lexical_threshold", pa.float64(), False), ("structural_threshold", pa.float64(), True)]
_GRID_SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=nullable) for name, kind, nullable in _THRESHOLDS]
    + [pa.field(name, pa.int64(), nullable=False) for name in ("kept", "exact", "lexical", "structural")]
)
_PREFIX_SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=nullable) for name, kind, nullable in _THRESHOLDS]
    + [pa.field("prefix", pa.string(), nullable=True)]  # null: all other prefixes together
    + [pa.field(name, pa.int64(), nullable=False) for name in ("records", "kept")]
)


def parse_threshold(text: str) -> float | None:
    """A structural threshold, or None for `off`.

    Raises: UsageError if it is neither.
    """
    if text == "off":
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--structural {text}: must be a number from 0.5 to 1.0, or off") from None


def sensitivity(
    source: Source,
    out: Path,
    *,
    lexical: Sequence[float] = LEXICAL_GRID,
    structural: Sequence[float | None] = STRUCTURAL_GRID,
    include: Sequence[str] = (),
    prefer: Sequence[str] = (),
    from_scratch: bool = False,
    tokens: Detail = "abstract",
    jobs: int | None = None,
    force: bool = False,
) -> Manifest:
    """Write the kept counts over the grid, a table, a figure and a report, into the folder `out`.

    Args:
        structural: thresholds; None is a grid column without the structural stage.
        include, prefer, from_scratch, tokens: as for `lemur curate`.

    Returns: the manifest that was written; its counts hold the grid.
    Raises: UsageError for thresholds outside 0.5 to 1; UserError for a source without usable records, or an `out` that
        cannot be written.
    """
    taus, kappas = _in_order(lexical, "lexical"), _in_order(structural, "structural")
    options = CurateOptions(include=tuple(include), prefer=tuple(prefer), from_scratch=from_scratch, tokens=tokens)
    watch = Stopwatch()
    with atomic_folder(out, force=force) as folder:
        with tempfile.TemporaryDirectory(dir=folder) as scratch, CodeFile(Path(scratch) / "codes") as codes:
            corpus = read_corpus(source, codes, options.tokens, jobs)
        watch.lap("load and features")
        records = build_records(corpus, options)
        if not records.order:
            raise UserError(f"{source.name}: no row is usable and let through by the options; nothing to compare")
        grid = decide_grid(corpus, records, [tau for tau in taus if tau is not None], kappas)
        watch.lap("decide")
        rows = _write_tables(folder, grid)
        write_figure(folder / "figures" / "sensitivity.png", grid)
        (folder / "report.md").write_text(sensitivity_page(source.name, grid), encoding="utf-8")
        watch.lap("write")
        manifest = Manifest(
            kind="sensitivity",
            versions=package_versions(),
            parameters={
                "source": source.name,
                "lexical": taus,
                "structural": kappas,
                "include": list(include),
                "prefer": list(prefer),
                "from_scratch": from_scratch,
                "tokens": tokens,
            },
            inputs=[Input(name=item.name, sha256=item.sha256, bytes=item.bytes) for item in source.inputs()],
            parents=parents_of(source),
            counts={"rows": corpus.rows.num_rows, "codes": grid.records, "grid": [_facts(p) for p in grid.points]},
            details={"lsh": {f"{tau:g}": recall.facts() for tau, recall in grid.recalls.items()}},
            outputs=list_outputs(folder, rows),
            measured=watch.measured(),
        )
        write_manifest(folder, manifest)
    return manifest


def _in_order(thresholds: Sequence[float | None], name: str) -> list[float | None]:
    """Each threshold once, rising, None last.

    Raises: UsageError if one lies outside 0.5 to 1, or there is none.
    """
    if not thresholds:
        raise UsageError(f"--{name}: no thresholds; give at least one, for example 0.9")
    for value in thresholds:
        if value is not None and not 0.5 <= value <= 1.0:
            raise UsageError(f"--{name} {value}: must lie between 0.5 and 1.0")
    return sorted(set(thresholds), key=lambda value: math.inf if value is None else value)


def _facts(point: GridPoint) -> dict[str, Any]:
    facts = asdict(point)
    del facts["kept_by_prefix"]
    return facts


def _write_tables(folder: Path, grid: Grid) -> dict[str, int]:
    """Write both tables. Returns: rows by path below `folder`."""
    write_table(folder / "sensitivity.parquet", _GRID_SCHEMA, (_facts(point) for point in grid.points))
    write_table(folder / "by_prefix.parquet", _PREFIX_SCHEMA, _prefix_rows(grid))
    return {
        "sensitivity.parquet": len(grid.points),
        "by_prefix.parquet": len(grid.points) * len(grid.records_by_prefix),
    }


def _prefix_rows(grid: Grid) -> Iterator[dict[str, object]]:
    for point in grid.points:
        for prefix, records in grid.records_by_prefix.items():
            yield {
                "lexical_threshold": point.lexical_threshold,
                "structural_threshold": point.structural_threshold,
                "prefix": prefix,
                "records": records,
                "kept": point.kept_by_prefix.get(prefix, 0),
            }
