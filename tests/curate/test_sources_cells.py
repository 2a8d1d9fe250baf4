"""Values of every type: the same row from every format, null or a problem where a value does not fit."""

import csv
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curate.rows import ROW_SCHEMA
from curate.sources import open_source


def read(path: Path) -> list[dict[str, Any]]:
    found = [row for batch in open_source(str(path)).batches() for row in batch.to_pylist()]
    assert all((row["nn_code"] is None) == (row["problem"] is not None) for row in found)
    return found


def read_table(path: Path, columns: dict[str, Any]) -> list[dict[str, Any]]:
    pq.write_table(pa.table(columns), path)
    return read(path)


# --- the same rows from every format ----------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
RECORD = st.fixed_dictionaries(
    {
        "nn": TEXT,
        "nn_code": TEXT,
        "task": TEXT | st.none(),
        "dataset": TEXT | st.none(),
        "metric": TEXT | st.none(),
        "epoch": st.integers(-(2**63), 2**63 - 1) | st.none(),
        "accuracy": st.floats() | st.none(),
        "duration": st.floats() | st.none(),
        "prm": st.dictionaries(TEXT, st.integers()).map(lambda prm: json.dumps(prm, sort_keys=True)) | st.none(),
        "problem": TEXT,
    }
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(RECORD, min_size=1, max_size=5))
def test_same_rows_from_every_format(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(records, schema=ROW_SCHEMA), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    text = io.StringIO()
    writer = csv.DictWriter(text, ROW_SCHEMA.names, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(records)
    (tmp_path / "a.csv").write_bytes(text.getvalue().encode())
    found = read(tmp_path / "a.parquet")
    assert found == read(tmp_path / "a.jsonl") == read(tmp_path / "a.csv")
    for row, record in zip(found, records, strict=True):
        blank = not record["nn_code"].strip()
        assert (row["nn_code"], row["problem"]) == ((None, "nn_code is empty") if blank else (record["nn_code"], None))
        assert [row[name] for name in ("nn", "task", "epoch", "prm")] == [
            record[name] for name in ("nn", "task", "epoch", "prm")
        ]


NUMBERS: list[tuple[Any, int | None, float | None]] = [  # value, as epoch, as accuracy
    (3, 3, 3.0),
    (3.0, 3, 3.0),
    (0.5, None, 0.5),
    ("12", 12, 12.0),
    ("0.5", None, 0.5),
    ("many", None, None),
    ("", None, None),
    (True, None, None),
    (None, None, None),
    (float("nan"), None, None),
    (float("inf"), None, None),
    ("nan", None, None),
    (2**63, None, 2.0**63),
    (10**400, None, None),
    ([1], None, None),
    ({"a": 1}, None, None),
]


@pytest.mark.parametrize(("value", "epoch", "accuracy"), NUMBERS)
def test_numbers_that_do_not_fit_are_null(
    tmp_path: Path, value: Any, epoch: int | None, accuracy: float | None
) -> None:
    record = {"nn": "a", "nn_code": "x = 1", "epoch": value, "accuracy": value}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    [row] = read(tmp_path / "a.jsonl")
    assert (row["epoch"], row["accuracy"], row["problem"]) == (epoch, accuracy, None)
    if value != 10**400:
        kind = pa.uint64() if value == 2**63 else None
        values = pa.array([value], kind)
        [same] = read_table(
            tmp_path / "a.parquet", {"nn": ["a"], "nn_code": ["x = 1"], "epoch": values, "accuracy": values}
        )
        assert same == row


def test_jsonl_texts_of_other_types(tmp_path: Path) -> None:
    record = {"nn": 5, "nn_code": "x = 1", "task": "\ud800!", "dataset": None, "prm": {"b": [1], "a": {"c": None}}}
    (tmp_path / "a.ndjson").write_text("\ufeff" + json.dumps(record), encoding="utf-8")
    [row] = read(tmp_path / "a.ndjson")
    assert (row["nn"], row["task"], row["prm"]) == ("5", "\\ud800!", '{"a": {"c": null}, "b": [1]}')


# --- Parquet types ----------------------------------------------------------------------------------------------


def raw_strings(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """A string array that holds any bytes, as a careless writer makes it."""
    made = pa.array(values, pa.binary())
    return pa.Array.from_buffers(kind, len(values), made.buffers())


@pytest.mark.parametrize(
    ("codes", "problems"),
    [
        (
            pa.array(["x = 1", None, " ", "\u2003\u2003", "é"]),
            [None, "nn_code is missing", *["nn_code is empty"] * 2, None],
        ),
        (pa.array(["x = 1", "x = 1"], pa.large_string()), [None, None]),
        (pa.array(["x = 1", None]).dictionary_encode(), [None, "nn_code is missing"]),
        (pa.array([1, None]), ["nn_code is not a string (int64)", "nn_code is missing"]),
        (pa.array([None, None]), ["nn_code is missing"] * 2),
        (pa.array([["x"]]), ["nn_code is not a string (list<element: string>)"]),
        (
            pa.array([b"x = 1", b"ab\xff", b"", None]),
            [None, "invalid UTF-8 at byte 2", "nn_code is empty", "nn_code is missing"],
        ),
        (raw_strings([b"x = 1", b"\xff"], pa.string()), [None, "invalid UTF-8 at byte 0"]),
        (pa.array([b"x = 1"], pa.binary(5)), [None]),
    ],
)
def test_parquet_codes(tmp_path: Path, codes: pa.Array, problems: list[str | None]) -> None:
    found = read_table(tmp_path / "a.parquet", {"nn": pa.nulls(len(codes), pa.string()), "nn_code": codes})
    assert [row["problem"] for row in found] == problems
    assert {row["nn"] for row in found} == {""}


@pytest.mark.skipif(not hasattr(pa, "json_"), reason="this pyarrow has no JSON type")
def test_parquet_extension_type(tmp_path: Path) -> None:
    prm = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"lr": 1}']))
    code = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["x = 1"]))
    [row] = read_table(tmp_path / "a.parquet", {"nn": ["a"], "nn_code": code, "prm": prm})
    assert (row["nn_code"], row["prm"]) == ("x = 1", '{"lr": 1}')


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([{"lr": 0.1, "batch": 8}, None]), ['{"batch": 8, "lr": 0.1}', None]),
        (pa.array([[("b", 1), ("a", 2)], None], pa.map_(pa.string(), pa.int64())), ['{"a": 2, "b": 1}', None]),
        (pa.array(['{"lr": 1}', None]).dictionary_encode(), ['{"lr": 1}', None]),
        (raw_strings([b"\xff!", b"ok"], pa.string()), ["\\xff!", "ok"]),
        (pa.array([2**60, None], pa.timestamp("ms")), [None, None]),
        (pa.array([Decimal("1.5"), None]), ['"1.5"', None]),
    ],
)
def test_parquet_parameters(tmp_path: Path, values: pa.Array, expected: list[str | None]) -> None:
    columns = {"nn": ["a", "b"], "nn_code": ["x = 1"] * 2, "prm": values, "epoch": values, "ignored": values}
    found = read_table(tmp_path / "a.parquet", columns)
    assert [row["prm"] for row in found] == expected
    assert [row["problem"] for row in found] == [None, None]
