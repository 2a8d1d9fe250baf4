"""Tables as SOURCE: every row comes out, the same from every format, whatever its bytes, in little memory."""

import csv
import gzip
import hashlib
import io
import json
import shutil
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curate.sources import find_source_parents, open_source, open_sources
from curate.sources.rows import BATCH_CHARACTERS, BATCH_ROWS, ROW_SCHEMA
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import escape_controls
from manifests.folders.manifest import Parent, describe_parent
from tests.builders.source_rows import error_of, read, rows_of
from tests.builders.suites import table

GOOD = b'{"nn": "good", "nn_code": "x = 1"}\n'
QUICK = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read_bytes(path: Path, content: bytes) -> list[dict[str, Any]]:
    path.write_bytes(content)
    return read(path)


def read_table(path: Path, columns: dict[str, Any]) -> list[dict[str, Any]]:
    pq.write_table(pa.table(columns), path)
    return read(path)


@table(__file__, "sources_tables.md", "Jsonl line", globals())
def test_jsonl_line(tmp_path: Path, line: bytes, problem: str | None) -> None:
    found = read_bytes(tmp_path / "a.jsonl", GOOD + line + b"\n" + GOOD)
    assert [row["problem"] for row in found] == [None, problem, None]


@table(__file__, "sources_tables.md", "Csv record", globals())
def test_csv_record(tmp_path: Path, line: bytes, code: str | None, problem: str | None) -> None:
    found = read_bytes(tmp_path / "a.csv", b"nn,nn_code\ngood,x = 1\n" + line + b"\ngood,x = 1\n")
    assert [(row["nn_code"], row["problem"]) for row in found] == [("x = 1", None), (code, problem), ("x = 1", None)]


def test_json_array(tmp_path: Path) -> None:
    """As `pandas.DataFrame.to_json(orient="records")` writes it; with lines instead, it is read as JSONL."""
    array = b' \n[{"nn": "a", "nn_code": "x = 1"}, 7, {"nn": "b", "nn_code": "\xff"}, {"nn": "c"}]\n'
    rows = read_bytes(tmp_path / "a.json", array)
    assert [(row["nn"], row["problem"]) for row in rows] == [
        ("a", None),
        ("", "element 2: not a JSON object: it is a int"),
        ("b", "nn_code has a lone surrogate, not valid Unicode"),
        ("c", "nn_code is missing"),
    ]
    assert read_bytes(tmp_path / "a.json.gz", gzip.compress(array)) == rows
    assert [row["nn"] for row in read_bytes(tmp_path / "a.json", b"\xef\xbb\xbf" + GOOD + GOOD)] == ["good"] * 2


def test_csv_quote_never_closed(tmp_path: Path) -> None:
    found = read_bytes(tmp_path / "a.csv", b'nn,nn_code\na,x = 1\nb,"y = 1\nc,z = 1\n')
    assert [(row["nn_code"], row["problem"]) for row in found] == [("x = 1", None), (None, "a quote is not closed")]


@QUICK
@given(lines=st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b""))))
def test_jsonl_loses_no_line(tmp_path: Path, lines: list[bytes]) -> None:
    found = read_bytes(tmp_path / "a.jsonl", GOOD + b"\n".join(lines))
    assert len(found) == 1 + sum(bool(line.strip()) for line in lines)


@QUICK
@given(values=st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40))))
def test_csv_loses_no_record(tmp_path: Path, values: list[tuple[bytes, bytes]]) -> None:
    quoted = [b",".join(b'"' + field.replace(b'"', b'""') + b'"' for field in pair) for pair in values]
    plain = [line for pair in values if (line := b",".join(pair).translate(None, b'"\r\n'))]
    found = read_bytes(tmp_path / "b.csv", b"\n".join([b"nn,nn_code", *plain, b"good,x = 1"]))
    assert (len(found), found[-1]["nn"], found[-1]["nn_code"]) == (1 + len(plain), "good", "x = 1"), "bytes spoil a row"
    found = read_bytes(tmp_path / "a.csv", b"\n".join([b"nn,nn_code", b"good,x = 1", *quoted]))
    assert len(found) == 1 + len(values)
    for row, (_, code) in zip(found[1:], values, strict=True):
        assert row["nn_code"] is None or row["nn_code"].encode() == code


@QUICK
@given(content=st.binary(max_size=200))
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json", "parquet", "csv.gz", "jsonl.gz"])
def test_any_bytes_are_rows_or_one_error(tmp_path: Path, suffix: str, content: bytes) -> None:
    file, said = tmp_path / f"a.{suffix}", ""
    try:
        found = read_bytes(file, content)
    except UserError as error:
        said = str(error)
    assert said.startswith(f"{file}: ") if said else found


def test_folder_of_parquet_files(tmp_path: Path) -> None:
    for name in ("b", "a/c", ".cache/d"):
        file = tmp_path / f"{name}.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"nn": [name], "nn_code": ["x = 1"]}), file)
    source = open_source(str(tmp_path))
    assert [row["nn"] for row in rows_of(source)] == ["a/c", "b"]
    assert [(i.name, i.bytes > 0) for i in source.inputs()] == [(tmp_path.name, True)]
    (tmp_path / "model.py").write_text("y = 1")
    assert [row["nn"] for row in read(tmp_path)] == ["model"]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "json"])
def test_batches_are_cut_and_repeatable(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    rows = [{"nn": "n", "nn_code": f"x = {number}"} for number in range(2 * BATCH_ROWS + 1)]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif suffix == "csv":
        file.write_text("".join(f"{','.join(line)}\n" for line in (rows[0], *(row.values() for row in rows))))
    else:
        file.write_text(
            json.dumps(rows, indent=1) if suffix == "json" else "".join(json.dumps(row) + "\n" for row in rows)
        )
    source = open_source(str(file))
    assert [batch.num_rows for batch in source.batches()] == [BATCH_ROWS, BATCH_ROWS, 1]
    assert rows_of(source) == rows_of(source)
    assert [row["nn_code"] for row in rows_of(source)] == [f"x = {i}" for i in range(2 * BATCH_ROWS + 1)]
    assert source.name == "a." + suffix
    [described] = source.inputs()
    assert (described.name, described.bytes) == ("a." + suffix, file.stat().st_size)
    assert described.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_huge_codes_are_passed_on_in_small_batches(tmp_path: Path, suffix: str) -> None:
    huge = "x" * (BATCH_CHARACTERS + 1)
    codes = ["x" * (12 << 20)] * 3 + [huge] + ["y = 1"] * 2
    file = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"nn": ["a"] * 6, "nn_code": codes}), file, compression="zstd")
    else:
        file.write_text("".join(f'{{"nn": "a", "nn_code": "{code}"}}\n' for code in codes))
    batches = list(open_source(str(file)).batches())
    assert [batch.num_rows for batch in batches] == [2, 1, 1, 2]
    assert [len(code) for batch in batches for code in batch.column("nn_code").to_pylist()] == list(map(len, codes))


@pytest.mark.slow
def test_memory_stays_bounded(tmp_path: Path) -> None:
    file, count = tmp_path / "a.parquet", 60_000
    codes = pa.chunked_array([pa.array([f"x = {i % 10}\n" * 170 for i in range(1000)])] * (count // 1000))
    options = {"use_dictionary": False, "compression": "none", "row_group_size": count}  # one part of 60 MB
    pq.write_table(pa.table({"nn": ["a"] * count, "nn_code": codes}), file, **options)
    assert file.stat().st_size > 60e6
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    tracemalloc.start()
    for batch in open_source(str(file)).batches():
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    python_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    file.unlink()
    assert rows == count
    assert most < 20 << 20
    assert python_peak < 10 << 20


@pytest.mark.slow
def test_memory_of_repeated_large_codes(tmp_path: Path) -> None:
    """A dictionary in the file hides how large its codes are."""
    file = tmp_path / "a.parquet"
    code = pa.DictionaryArray.from_arrays(pa.array([0] * BATCH_ROWS, pa.int32()), pa.array(["x" * (1 << 19)]))
    pq.write_table(pa.table({"nn": ["a"] * BATCH_ROWS, "nn_code": code}), file)
    assert file.stat().st_size < 1e6
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        sizes = [(batch.num_rows, batch.nbytes) for batch in open_source(str(file)).batches()]
    finally:
        pa.set_memory_pool(usual)
    assert sum(rows for rows, _ in sizes) == BATCH_ROWS
    assert max(size for _, size in sizes) <= BATCH_CHARACTERS + 100_000
    assert pool.max_memory() < 600 << 20  # unfolded: 1 GB


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
        "prm": st.dictionaries(TEXT.map("x".__add__), st.integers()).map(json.dumps) | st.none(),
        "problem": TEXT,
    }
)


@QUICK
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
        assert row["nn"] == escape_controls(record["nn"])
        assert [row[name] for name in ("task", "epoch", "prm")] == [record[name] for name in ("task", "epoch", "prm")]


@table(__file__, "sources_tables.md", "Numbers that do not fit are null", globals())
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


def test_a_value_that_is_no_number_is_told_with_row_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "nn,nn_code,epoch,accuracy\na,x = 1,1,0.5\nb,x = 2,,nan\nc,x = 3,2,n/a\nd,x = 4,third,\xff\n"
    found = read_bytes(tmp_path / "a.csv", rows.encode("latin-1"))
    assert [(row["epoch"], row["accuracy"]) for row in found] == [(1, 0.5), (None, None), (2, None), (None, None)]
    told = "row 2, column accuracy: 'n/a' is not a finite number, so null is read; 2 more values cannot be read either"
    assert capsys.readouterr().err == f"{tmp_path}/a.csv: {told}\n"
    read_bytes(tmp_path / "b.csv", b"nn,nn_code,epoch\na,x = 1,2.5\n")
    assert "row 0, column epoch: '2.5' is not a whole number of 64 bits, so null is read\n" in capsys.readouterr().err


def test_jsonl_texts_of_other_types(tmp_path: Path) -> None:
    record = {"nn": 5, "nn_code": "x = 1", "task": "\ud800!", "dataset": None, "prm": {"b": [1], "a": {"c": None}}}
    (tmp_path / "a.ndjson").write_text("\ufeff" + json.dumps(record), encoding="utf-8")
    [row] = read(tmp_path / "a.ndjson")
    assert (row["nn"], row["task"], row["prm"]) == ("5", "\\ud800!", '{"a": {"c": null}, "b": [1]}')


def raw_strings(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """A string array that holds any bytes, as a careless writer makes it."""
    made = pa.array(values, pa.binary())
    return pa.Array.from_buffers(kind, len(values), made.buffers())


@table(__file__, "sources_tables.md", "Parquet codes", globals())
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


@table(__file__, "sources_tables.md", "Parquet parameters", globals() | {"Decimal": Decimal})
def test_parquet_parameters(tmp_path: Path, values: pa.Array, expected: list[str | None]) -> None:
    columns = {"nn": ["a", "b"], "nn_code": ["x = 1"] * 2, "prm": values, "epoch": values, "ignored": values}
    found = read_table(tmp_path / "a.parquet", columns)
    assert [row["prm"] for row in found] == expected
    assert [row["problem"] for row in found] == [None, None]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz"])
def test_a_file_out_of_proportion_is_not_read(tmp_path: Path, name: str) -> None:
    with gzip.open(tmp_path / name, "wb") as file:
        file.write(b'{"nn": "a", "nn_code": "' if "jsonl" in name else b"nn,nn_code\na,")
        for _ in range(100):
            file.write(b"x" * (1 << 20))
    with pytest.raises(UserError, match=rf"{name}: (?:[0-9,]+ bytes of it unpack to more|line 2 is longer) than"):
        list(open_source(str(tmp_path / name)).batches())


LINES = [GOOD.decode(), '{"nn": "b", "nn_code": "' + "y" * 950 + '"}\n', GOOD.decode()]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", "".join(LINES), [None, "line 2: longer than 0 MiB", None]),
        ("a.csv", "nn,nn_code\na,x\nb," + "y" * 950, "a field has more than 0 MiB, or a quote is not closed"),
    ],
)
def test_records_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, expected: str | list[str | None]
) -> None:
    monkeypatch.setattr("curate.sources.rows.MAX_RECORD_BYTES", 100)
    (tmp_path / name).write_text(content)
    if isinstance(expected, str):
        assert expected in error_of(tmp_path / name)
    else:
        assert [row["problem"] for row in read(tmp_path / name)] == expected


# The finished folders that the rows of a curation come from.


@pytest.fixture
def snapshot(tmp_path: Path, finished: Callable[..., Path]) -> Path:
    """A finished folder with two tables of rows and a file that is none."""
    records = tmp_path / "snap" / "data" / "records"
    records.mkdir(parents=True)
    for split in ("train", "test"):
        pq.write_table(pa.table({"nn": [split], "nn_code": [f"x = '{split}'\n"]}), records / f"{split}.parquet")
    (tmp_path / "snap" / "README.md").write_text("# Snapshot\n")
    return finished(tmp_path / "snap", "snapshot")


def parents(*paths: Path) -> list[Parent]:
    return find_source_parents(open_sources([str(path) for path in paths]) if paths[1:] else open_source(str(paths[0])))


def test_rows_have_the_folder_that_lists_their_file_as_parent(
    snapshot: Path, tmp_path: Path, finished: Callable[..., Path]
) -> None:
    records, code = snapshot / "data" / "records", tmp_path / "code"
    (code / "blocks").mkdir(parents=True)
    (code / "blocks" / "a.py").write_text("x = 1\n")
    finished(code, "extraction")
    for place in (records, records / "train.parquet"):
        assert parents(place) == [describe_parent(snapshot)]
    assert parents(code) == [describe_parent(code)]
    assert parents(records, code / "blocks") == [describe_parent(code), describe_parent(snapshot)]
    copy = Path(shutil.copy(records / "train.parquet", tmp_path / "rows.parquet"))
    assert parents(copy) == []
    (tmp_path / "manifest.json").write_text('{"manifest_version": 3}')
    assert parents(copy) == [], "a manifest of another program is none"
    assert parents(Path(shutil.copy(copy, snapshot / "data" / "more.parquet"))) == [], "not a file of the snapshot"


def test_what_was_changed_is_no_parent(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = snapshot / "data" / "records" / "train.parquet"
    pq.write_table(pa.table({"nn": ["other"], "nn_code": ["x = 2\n"]}), file)
    assert parents(file) == []
    assert "data/records/train.parquet differs from its manifest.json" in capsys.readouterr().err
