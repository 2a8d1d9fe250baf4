"""Records: their columns are those of the design, their schemas are current, and what is wrong is refused."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from manifests.folders.cards import card_yaml
from manifests.folders.checks import check_table
from manifests.folders.manifest import Manifest
from manifests.folders.tables import ROWS_PER_FILE, Table, select_tables, write_tables
from manifests.records import RECORD_TYPES, Decision, LemurRecord, Record, Removed, Stat, arrow_schema
from manifests.records.corpus import Corpus
from manifests.schemas import FOLDER, schema_texts
from tests.builders.suites import table

API = {
    "nn": "string", "task": "string?", "dataset": "string?", "metric": "string?", "epoch": "int64?",
    "accuracy": "double?", "duration": "double?", "prm": "string?",
}  # fmt: skip


def columns(record: type[Record]) -> dict[str, str]:
    return {field.name: f"{field.type}{'?' if field.nullable else ''}" for field in arrow_schema(record)}


def test_schemas_are_current() -> None:
    """If this fails, run `make schemas`."""
    checked_in = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert checked_in == schema_texts()
    assert set(checked_in) == {f"{record.__name__}.json" for record in (*RECORD_TYPES, Manifest, Corpus)}


def test_lemur_record_columns() -> None:
    names = "nn nn_code task dataset metric epoch accuracy duration prm id prefix family split weight cluster score pretrained"
    graph = ("graph", "graph_widths", "behavior", "dead_classes", "unused_parameters")
    best = ("best_accuracy", "best_epoch", "best_dataset")
    rights = ("license", "origin", "origin_similarity", "origin_license")
    assert list(columns(LemurRecord)) == [*names.split(), "runs", "runs_error", *graph, "arch_uid", *best, *rights]
    names_of = "list<element: string not null>?"
    own = dict(zip(graph, (*("string?",) * 3, names_of, names_of), strict=True)) | {
        "nn_code": "string", "id": "string", "prefix": "string", "family": "string", "split": "string",
        "weight": "double", "cluster": "string", "score": "double?", "pretrained": "bool",
        "runs": "bool?", "runs_error": "string?", "arch_uid": "string?",
        "best_accuracy": "double?", "best_epoch": "int64?", "best_dataset": "string?",
        "license": "string?", "origin": "string?", "origin_similarity": "double?", "origin_license": "string?",
    }  # fmt: skip
    assert columns(LemurRecord) == API | own


def test_decision_columns() -> None:
    assert list(columns(Decision).items()) == [
        ("row", "int64"),
        ("id", "string?"),
        ("nn", "string"),
        ("kept", "bool"),
        ("stage", "string?"),
        ("rescued", "string?"),
        ("canonical", "string?"),
        ("similarity", "double?"),
        ("reason", "string"),
        ("agreement", "string?"),
        ("leader", "string?"),
    ]


ID = "0" * 64
DECISION: dict[str, Any] = {
    "row": 0, "id": ID, "nn": "a", "kept": True, "stage": None, "rescued": None, "canonical": ID, "similarity": 1.0,
    "reason": "kept",
}  # fmt: skip


@table(__file__, "schemas.md", "A wrong decision", globals())
def test_a_wrong_decision(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Decision.model_validate(DECISION | change)


def test_tables_are_cut_and_hold_their_columns(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manifests.folders.tables.ROWS_PER_FILE", 10)
    monkeypatch.setattr("manifests.folders.tables._ROWS_PER_GROUP", 3)
    rows = ({**DECISION, "row": number} for number in range(25))
    assert write_tables(tmp_path / "t", "train", Decision, rows, 25) == {
        "train-00000-of-00003.parquet": 10,
        "train-00001-of-00003.parquet": 10,
        "train-00002-of-00003.parquet": 5,
    }
    table = pq.read_table(sorted((tmp_path / "t").iterdir()))
    assert table.column("row").to_pylist() == list(range(25))
    assert table.schema.equals(arrow_schema(Decision))
    assert check_table(tmp_path, "t/*.parquet", Decision).ok
    assert ROWS_PER_FILE * 40_000 < 2**31, "codes of LEMUR's size must fit into one column"


def test_an_empty_table_has_its_columns(tmp_path: Any) -> None:
    assert write_tables(tmp_path, "test", Decision, [], 0) == {"test-00000-of-00001.parquet": 0}
    assert pq.read_schema(tmp_path / "test-00000-of-00001.parquet").equals(arrow_schema(Decision))
    assert check_table(tmp_path, "*.parquet", Decision).ok


STAT = {"id": ID, "nn": "a", "task": None, "dataset": None, "metric": None, "epoch": 1, "accuracy": 0.5, "duration": None,
        "prm": None}  # fmt: skip


def stats(**changes: Any) -> pa.Table:
    """One row of stats, with some columns replaced (by a value or an Arrow array) or left out (by `...`)."""
    table = pa.Table.from_pylist([STAT], schema=arrow_schema(Stat))
    for name, value in changes.items():
        place = table.column_names.index(name)
        table = table.remove_column(place)
        if value is not ...:
            table = table.add_column(place, name, value if isinstance(value, pa.Array) else pa.array([value]))
    return table


@table(__file__, "schemas.md", "A wrong table is named", globals())
def test_a_wrong_table_is_named(tmp_path: Any, table: Any, fault: str) -> None:
    if isinstance(table, bytes):
        (tmp_path / "t.parquet").write_bytes(table)
    elif table is not None:
        pq.write_table(table, tmp_path / "t.parquet")
    check = check_table(tmp_path, "t.parquet", Stat)
    assert not check.ok
    assert check.detail.startswith(fault)


def test_further_columns_may_follow(tmp_path: Any) -> None:
    pq.write_table(stats().append_column("more", pa.array([1])), tmp_path / "t.parquet")
    assert check_table(tmp_path, "t.parquet", Stat).ok


def test_what_has_no_rows_is_not_offered() -> None:
    configs = {
        "some": (Removed, {"train": "some/train-*.parquet", "test": "some/test-*.parquet"}),
        "none": (Removed, {"train": "none.parquet"}),
    }
    rows = {"some/train-0.parquet": 3, "some/test-0.parquet": 0, "none.parquet": 0}
    assert select_tables(configs, rows) == [Table("some", Removed, {"train": "some/train-*.parquet"})]


@pytest.mark.parametrize(
    ("rows", "label"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (99_999, "10K<n<100K"), (10**6, "1M<n<10M")]
)
def test_card_yaml(rows: int, label: str) -> None:
    tables = [
        Table("records", Removed, {"train": "a-*.parquet", "test": "b.parquet"}),
        Table("more", Removed, {"train": "c.parquet"}),
    ]
    assert card_yaml(tables, default="records", pretty_name="Name", tags=["t"], size=rows) == (
        "---\npretty_name: Name\nlanguage:\n- en\n- code\nannotations_creators:\n- machine-generated\n"
        f"source_datasets:\n- original\ntask_categories:\n- text-generation\ntags:\n- t\nsize_categories:\n- {label}\nconfigs:\n"
        "- config_name: records\n  default: true\n  data_files:\n  - split: train\n    path: a-*.parquet\n"
        "  - split: test\n    path: b.parquet\n"
        "- config_name: more\n  data_files:\n  - split: train\n    path: c.parquet\n---\n"
    )
