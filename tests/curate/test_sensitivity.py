"""`lemur sensitivity`: every grid point is a curation of its own, and the folder says the same everywhere."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from curate.model.options import CurateOptions
from curate.model.records import build_records
from curate.run.pipeline import curate
from curate.run.sensitivity import (
    LEXICAL_GRID,
    STRUCTURAL_GRID,
    decide_grid,
    sensitivity,
)
from curate.sources import open_source
from lemur_core.files.errors import UserError
from lemur_core.similarity import join
from manifests.folders.manifest import Manifest, read_manifest

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(network: Callable[..., str]) -> list[Row]:
    """Networks that differ by a block or two, by their width, by what is around them, and by a comment."""
    draw = random.Random(5)
    found: list[Row] = []
    for parent in range(6):
        blocks = [draw.randrange(12) for _ in range(14)]
        variants = [
            network(blocks),
            network(blocks, comment="the same"),
            network(blocks, width=128),
            network(blocks, name="Other"),
            network(blocks, glue=False),
            *(network([*blocks, *range(more)]) for more in (1, 2, 4)),
        ]
        prefix = ("first", "second", "third")[parent % 3]
        for number, code in enumerate(variants):
            found.append({"nn": f"{prefix}-{parent}-{number}", "nn_code": code, "accuracy": draw.random()})
    found.append({"nn": "rare-pretrained", "nn_code": network([3, 1], extra='W = load(weights="DEFAULT")')})
    found.append({"nn": "broken", "nn_code": "def"})
    return found


@pytest.fixture
def source(rows: list[Row], warm: Callable[..., None], tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    warm(row["nn_code"] for row in rows)
    return str(path)


def run(source: str, out: Path, **options: Any) -> Manifest:
    return sensitivity(open_source(source), out, jobs=1, **options)


def grid_of(folder: Path) -> list[Row]:
    found: list[Row] = pq.read_table(folder / "sensitivity.parquet").to_pylist()
    return found


# --- the numbers --------------------------------------------------------------------------------------------------


def test_every_point_is_what_curation_decides(rows: list[Row], curated: Callable[..., Any]) -> None:
    lexical, structural = (0.6, 0.8, 0.9, 1.0), (0.8, 0.95, 1.0)
    base = curated(rows)
    grid = decide_grid(base.corpus, build_records(base.corpus, base.options), lexical, structural)
    assert [(p.lexical_threshold, p.structural_threshold) for p in grid.points] == [
        (tau, kappa) for tau in lexical for kappa in structural
    ]
    for point in grid.points:
        done = curated(rows, lexical_threshold=point.lexical_threshold, structural_threshold=point.structural_threshold)
        stages = Counter(decision.stage for decision in done.decisions)
        counts = (stages[None], stages["exact"], stages["lexical"], stages["structural"])
        assert (point.kept, point.exact, point.lexical, point.structural) == counts
    assert len({point.kept for point in grid.points}) > 4  # or the corpus tells nothing apart
    assert any(point.structural for point in grid.points)


def test_pairs_from_the_join_and_from_lsh_decide_alike(
    rows: list[Row], curated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = curated(rows)
    records = build_records(base.corpus, base.options)
    joined = decide_grid(base.corpus, records, LEXICAL_GRID, STRUCTURAL_GRID)
    monkeypatch.setattr(join, "BUDGET", 1)
    proposed = decide_grid(base.corpus, records, LEXICAL_GRID, STRUCTURAL_GRID)
    assert {recall.sets_joined for recall in proposed.recalls.values()} == {1}
    assert all(recall.sets_joined == recall.sets > 20 for recall in joined.recalls.values())
    assert proposed.points == joined.points
    assert len({point.kept for point in joined.points}) > 5


def test_one_for_each_set_of_shingles_without_structure(rows: list[Row], curated: Callable[..., Any]) -> None:
    base = curated(rows)
    records = build_records(base.corpus, base.options)
    (point,) = decide_grid(base.corpus, records, [1.0], [None]).points
    features = base.corpus.features
    order = np.array(records.order)
    assert point.kept == len(set(features.shingle_set[order].tolist()))
    assert point.structural == 0
    assert point.exact + point.lexical == len(order) - point.kept
    assert point.exact > 0 < point.lexical


def test_default_point_is_the_default_curation(source: str, tmp_path: Path) -> None:
    snapshot = curate(open_source(source), tmp_path / "snapshot", CurateOptions(), jobs=1)
    counts = snapshot.counts
    assert run(source, tmp_path / "grid").details["lsh"]["0.9"] == snapshot.details["lsh"]
    (point,) = [
        row
        for row in grid_of(tmp_path / "grid")
        if (row["lexical_threshold"], row["structural_threshold"]) == (0.9, 0.95)
    ]
    assert {stage: point[stage] for stage in ("kept", "exact", "lexical", "structural")} == {
        stage: counts["rows"][stage] for stage in ("kept", "exact", "lexical", "structural")
    }


# --- the folder ---------------------------------------------------------------------------------------------------


def test_folder(source: str, rows: list[Row], tmp_path: Path) -> None:
    out = tmp_path / "grid"
    manifest = run(source, out)
    assert read_manifest(out) == manifest
    assert manifest.kind == "sensitivity"
    assert {output.path: output.rows for output in manifest.outputs} == {
        "report.md": None,
        "sensitivity.parquet": 42,
    }
    assert (manifest.counts["rows"], manifest.counts["codes"]) == (len(rows), len(rows) - 1)
    grid = grid_of(out)
    assert manifest.counts["grid"] == grid
    thresholds = [(row["lexical_threshold"], row["structural_threshold"]) for row in grid]
    assert thresholds == [(tau, kappa) for tau in LEXICAL_GRID for kappa in STRUCTURAL_GRID]
    assert {row["kept"] + row["exact"] + row["lexical"] + row["structural"] for row in grid} == {len(rows) - 1}


def test_the_report_shows_the_table(source: str, tmp_path: Path) -> None:
    out = tmp_path / "grid"
    run(source, out)
    lines = (out / "report.md").read_text(encoding="utf-8").split("\n")
    start = lines.index("| τ \\ κ | 0.80 | 0.85 | 0.90 | 0.95 | 1.00 | off |")
    told = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines[start + 2 : start + 9]]
    assert [line[0] for line in told] == ["0.70", "0.75", "0.80", "0.85", "0.90", "0.95", "1.00"]
    assert [int(cell.split(" (")[0]) for line in told for cell in line[1:]] == [row["kept"] for row in grid_of(out)]
    (bold,) = [line for line in lines if "**" in line]
    assert [place for place, cell in enumerate(bold.split("|")[1:-1]) if "**" in cell] == [4]
    assert bold.startswith("| 0.90 ")


def test_same_bytes_twice_whatever_the_order(source: str, rows: list[Row], tmp_path: Path) -> None:
    shuffled = tmp_path / "shuffled" / "rows.jsonl"
    shuffled.parent.mkdir()
    mixed = random.Random(1).sample(rows, len(rows))
    shuffled.write_text("".join(json.dumps(row) + "\n" for row in mixed), encoding="utf-8")
    assert run(source, tmp_path / "one").outputs == run(str(shuffled), tmp_path / "two").outputs


# --- what may be asked --------------------------------------------------------------------------------------------


def test_own_grid(source: str, tmp_path: Path) -> None:
    manifest = run(source, tmp_path / "grid", lexical=[0.95, 0.625, 0.95], structural=[None, 0.9])
    assert (manifest.parameters["lexical"], manifest.parameters["structural"]) == ([0.625, 0.95], [0.9, None])
    points = [(row["lexical_threshold"], row["structural_threshold"]) for row in grid_of(tmp_path / "grid")]
    assert points == [(0.625, 0.9), (0.625, None), (0.95, 0.9), (0.95, None)]
    report = (tmp_path / "grid" / "report.md").read_text(encoding="utf-8")
    assert "| τ \\ κ | 0.90 | off |" in report
    assert "| 0.625 |" in report
    assert "in bold" not in report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lexical": [0.9, 0.4]}, "--lexical 0.4: must lie between 0.5 and 1.0"),
        ({"lexical": [float("nan")]}, "--lexical nan: must lie between 0.5 and 1.0"),
        ({"structural": [None, 1.1]}, "--structural 1.1: must lie between 0.5 and 1.0"),
        ({"lexical": []}, "--lexical: no thresholds; give at least one, for example 0.9"),
    ],
)
def test_refused(source: str, tmp_path: Path, options: Row, message: str) -> None:
    with pytest.raises(UserError) as caught:
        run(source, tmp_path / "grid", **options)
    assert str(caught.value).endswith(message)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"nn": "broken", "nn_code": "def"}\n')
    with pytest.raises(UserError, match=r"^rows\.jsonl: no row is usable; nothing to compare$"):
        run(str(tmp_path / "rows.jsonl"), tmp_path / "grid")


def test_older_folder_is_replaced_only_when_forced(source: str, tmp_path: Path) -> None:
    small: Row = {"lexical": [0.9], "structural": [None]}
    run(source, tmp_path / "grid", **small)
    with pytest.raises(UserError, match="exists already"):
        run(source, tmp_path / "grid", **small)
    run(source, tmp_path / "grid", force=True, lexical=[0.9, 1.0], structural=[None])
    assert len(grid_of(tmp_path / "grid")) == 2
