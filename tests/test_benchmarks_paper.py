"""The metrics of the NN-RAG paper: its categories, classes of failure and tables, counted from the rows."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.paper import (
    CATEGORIES,
    COLUMNS,
    FAILURES,
    NEITHER,
    Headline,
    categories_section,
    count_failures,
    failures_section,
    headline_section,
    to_paper_category,
    to_paper_failure,
)
from extract.model import categories
from extract.model.blocks import read_blocks
from extract.resolve.dependencies import Reason
from lemur_core.sandbox import Status
from manifests.folders.manifest import read_manifest
from tests.builders import extractions


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("paper")
    sources = [extractions.source(base, name) for name in ("alpha@1.0", "beta@2.0")]
    extractions.write(base / "out", extractions.results(sources), sources, targets=("Attention", "Gone"))
    return base / "out"


def cells_of(section: list[str]) -> list[list[str]]:
    lines = [line for line in section if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_categories_reasons_and_headlines() -> None:
    named = [ours for _, all_ours in CATEGORIES.values() for ours in all_ours]
    assert len(CATEGORIES) == 8
    theirs = {"Attention": "Attention mechanisms", "Resampling": "Pooling operations", "Head": "Network architectures"}
    theirs |= dict.fromkeys(("Embedding", "of a later release"), "Utility modules")
    assert {ours: to_paper_category(ours) for ours in theirs} == theirs
    assert sorted(named) == sorted(categories.CATEGORIES)
    assert sum(stated for stated, _ in CATEGORIES.values()) == 1289
    known = set().union(*(kinds for _, kinds in FAILURES.values()))
    assert {str(reason) for reason in Reason} - known == {"newer_python"}
    assert to_paper_failure("newer_python") == NEITHER
    ended = {status.value for status in Status if status is not Status.OK}
    assert {to_paper_failure(kind) for kind in ended} == {NEITHER}
    assert to_paper_failure("native_op") == "External C++/CUDA operators"
    assert to_paper_failure("missing_dependency") == to_paper_failure("zero_division_error") == list(FAILURES)[-1]
    assert [stated for stated, _ in FAILURES.values()] == [87, 70, 52, 139]
    counts = {"blocks": 3, "lines": 40, "reached": {"emitted": 2, "executed": 1}, "targets": {"missing": ["A", "B"]}}
    assert Headline.of(counts) == Headline(targeted=5, extracted=2, validated=1, lines=40)


def test_only_what_is_not_executed_is_a_failure(tmp_path: Path) -> None:
    of = extractions.source(tmp_path)
    rows = [
        extractions.block(of, "A", "discovered"),
        extractions.block(of, "B", "compiled", error_kind="attribute_error", error="x"),
        extractions.block(of, "C", "compiled", error_kind="timeout", error="x"),
        extractions.block(of, "D", "executed", error_kind="no_arguments", error="x"),
        extractions.block(of, "E"),
    ]
    assert count_failures(rows) == {
        "External C++/CUDA operators": Counter(native_op=1),
        "Complex or circular dependencies": Counter(),
        "Dynamic metaprogramming": Counter(attribute_error=1),
        "Utilities and configuration of a repository": Counter(),
        NEITHER: Counter(timeout=1),
    }
    assert "Of 3 classes that are not `executed`" in "\n".join(failures_section(rows))
    assert not [line for line in failures_section(rows[:2]) if NEITHER in line]
    assert failures_section(rows[3:]) == []


def test_tables(written: Path, tmp_path: Path) -> None:
    rows = read_blocks(written, COLUMNS)
    by_category = {cells[0]: cells[2:] for cells in cells_of(categories_section(rows))}
    assert list(by_category) == list(CATEGORIES)
    assert by_category["Attention mechanisms"] == ["2", "20.0 %", "2", "100 %", "~180"]
    assert by_category["Utility modules"] == ["8", "80.0 %", "4", "50.0 %", "~289"]
    assert cells_of(failures_section(rows))[0][1:] == ["`native_op` 2", "2", "50.0 %", "~87 (25.0 %)"]
    headline = {cells[0]: cells[1] for cells in cells_of(headline_section(read_manifest(written)))}
    assert headline["total blocks targeted"] == "11"  # ten classes, and the name that none has
    assert headline["successfully extracted"] == "8"
    assert headline["extraction success rate"] == "72.7 %"
    assert headline["validation pass rate, 95 % Wilson interval"].startswith("54.5 %, ")
    lines = pq.read_table(written / "blocks.parquet", columns=["n_lines"])["n_lines"].to_pylist()
    assert headline["total generated code, lines"] == str(sum(number or 0 for number in lines))
    of = extractions.source(tmp_path)
    extractions.write(
        tmp_path / "out",
        [extractions.Result(extractions.block(of, "A", "parsed", error_kind=None, error=None))],
        [of],
        level="parsed",
    )
    headline = {cells[0]: cells[1] for cells in cells_of(headline_section(read_manifest(tmp_path / "out")))}
    assert headline["validated and executable"] == "–"
    assert headline["successfully extracted"] == "1"
