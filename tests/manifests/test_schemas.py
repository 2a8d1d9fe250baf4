"""Records: their columns are those of the design, their schemas are current, and what is wrong is refused."""

import json
import os
import runpy
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.kinds import check_files, check_table
from manifests.folders.manifest import (
    Input,
    Manifest,
    Parent,
    describe_parent,
    list_outputs,
    read_manifest,
    write_manifest,
)
from manifests.folders.tables import ROWS_PER_FILE, Table, select_tables, write_tables
from manifests.records import RECORD_TYPES, Decision, LemurRecord, Stat, arrow_schema
from manifests.records.corpus import Corpus
from tests.builders.suites import table


def test_schemas_are_current() -> None:
    """If this fails, run `make schemas`."""
    made = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "schemas.py"))
    checked_in = {path.name: path.read_text(encoding="utf-8") for path in made["FOLDER"].glob("*.json")}
    assert checked_in == made["schema_texts"]()
    assert set(checked_in) == {f"{record.__name__}.json" for record in (*RECORD_TYPES, Manifest, Corpus)}


ID = "0" * 64
DECISION: dict[str, Any] = {
    "row": 0, "id": ID, "nn": "a", "kept": True, "stage": None, "rescued": None, "canonical": ID, "similarity": 1.0,
    "reason": "kept",
}  # fmt: skip


@table(__file__, "schemas.md", "A wrong decision", globals())
def test_a_wrong_decision(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Decision.model_validate(DECISION | change)


def test_names_in_a_list_are_never_null() -> None:
    field = arrow_schema(LemurRecord).field("dead_classes")
    assert field == pa.field("dead_classes", pa.list_(pa.field("element", pa.string(), nullable=False)))


def test_tables_are_cut_and_hold_their_columns(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manifests.folders.tables.ROWS_PER_FILE", 10)
    monkeypatch.setattr("manifests.folders.tables._ROWS_PER_GROUP", 3)
    rows = ({**DECISION, "row": number} for number in range(25))
    write_tables(tmp_path / "t", "train", Decision, rows, 25)
    assert {item.path: item.rows for item in list_outputs(tmp_path / "t")} == {
        "train-00000-of-00003.parquet": 10,
        "train-00001-of-00003.parquet": 10,
        "train-00002-of-00003.parquet": 5,
    }
    table = pq.read_table(sorted((tmp_path / "t").iterdir()))
    assert table.column("row").to_pylist() == list(range(25))
    assert table.schema.equals(arrow_schema(Decision))
    write_tables(tmp_path / "none", "test", Decision, [], 0)
    assert pq.read_schema(tmp_path / "none" / "test-00000-of-00001.parquet").equals(arrow_schema(Decision))
    assert all(check_table(list((tmp_path / name).iterdir()), Decision).ok for name in ("t", "none"))
    assert ROWS_PER_FILE * 40_000 < 2**31, "codes of LEMUR's size must fit into one column"


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
    else:
        pq.write_table(table, tmp_path / "t.parquet")
    check = check_table([tmp_path / "t.parquet"], Stat)
    assert not check.ok
    assert check.detail.startswith(fault)
    pq.write_table(stats().append_column("more", pa.array([1])), tmp_path / "t.parquet")
    assert check_table([tmp_path / "t.parquet"], Stat).ok, "further columns may follow"


def test_what_has_no_rows_is_not_offered() -> None:
    some = {"train": "some/train-*.parquet", "test": "some/test-*.parquet"}
    tables = [Table("some", Stat, some), Table("none", Stat, {"train": "none.parquet"})]
    rows = {"some/train-0.parquet": 3, "some/test-0.parquet": 0, "none.parquet": 0}
    assert select_tables(tables, rows) == [Table("some", Stat, {"train": "some/train-*.parquet"})]


# Manifests: what is written comes back, what differs from them is named, and what may stand in them as a parent.

Finished = Callable[..., Path]
DIGEST = "0" * 64


def test_what_is_written_comes_back(tmp_path: Path, finished: Finished) -> None:
    (tmp_path / "specs.jsonl").write_text("{}\n" * 7)
    stated = {"versions": {"python": "3.11.0"}, "parameters": {"seed": 42}, "counts": {"rows": {"input": 1}}}
    inputs = [Input(name="rows.jsonl", sha256=DIGEST, bytes=3)]
    finished(tmp_path, "extraction", inputs=inputs, **stated)
    found = read_manifest(tmp_path)
    assert [(item.path, item.rows) for item in found.outputs] == [("specs.jsonl", 7)]  # itself is not listed
    assert (found.kind, found.inputs, found.parameters, found.counts) == (
        "extraction", inputs, stated["parameters"], stated["counts"]
    )  # fmt: skip
    assert check_files(tmp_path, found).ok
    before = (tmp_path / "manifest.json").read_bytes()
    write_manifest(tmp_path, found)
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "specs.jsonl"]
    older = json.loads(before)
    assert older.pop("parents") == []
    (tmp_path / "manifest.json").write_text(json.dumps(older))
    assert read_manifest(tmp_path) == found, "one from before parents"


def test_changed_files_are_named(tmp_path: Path, finished: Finished) -> None:
    for name in ("net.py", "record.json", "weights.pt"):
        (tmp_path / name).write_text(name)
    finished(tmp_path, "run")
    (tmp_path / "net.py").unlink()
    (tmp_path / "record.json").write_text("B")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "d").touch()
    check = check_files(tmp_path, read_manifest(tmp_path))
    assert not check.ok
    assert check.detail == "net.py is missing; new/d is not in the manifest; record.json differs from its digest"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no manifest.json; not a finished lemur folder"),
        *((text, "not a valid manifest") for text in (b"", b"[]", b"\xff")),
        (b'{"kind": 1}', "not a valid manifest: kind"),
    ],
)
def test_what_is_no_manifest(tmp_path: Path, text: bytes | None, message: str) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(UserError) as caught:
        read_manifest(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_finished_folder(tmp_path: Path, finished: Finished) -> None:
    where = tmp_path / "whole"
    finished(where / "blocks"), finished(where / "run")
    (tmp_path / "file").touch()
    for name, message in (
        ("whole", f"not a finished lemur folder; in it are {where}/blocks, {where}/run"),
        ("nowhere", "no such folder"),
        ("file", "is a file"),
    ):
        with pytest.raises(UserError, match=message):
            read_manifest(tmp_path / name)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a socket": make_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("name", ["manifest.json", "data/deep/x.parquet"])
@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL)
def test_what_is_not_a_file_is_not_waited_for(
    tmp_path: Path, finished: Finished, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], name: str
) -> None:
    folder = finished(tmp_path / "pp")
    monkeypatch.chdir(folder)  # the name of a socket is short
    Path(name).unlink(missing_ok=True)
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    make(Path(name))
    with pytest.raises(UserError, match=f"{name}: is a pipe, a socket or a device, not a file; name a file"):
        read_manifest(folder)


@pytest.mark.parametrize("name", ["/pp", "a/../b", "..", "C:\\pp", "\\\\host\\pp", ""])
def test_no_path_of_a_machine_is_the_name_of_a_parent(name: str) -> None:
    with pytest.raises(ValidationError):
        Parent(kind="extraction", name=name, sha256=DIGEST)


def test_a_folder_as_a_parent(tmp_path: Path, finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = finished(tmp_path / "pp", "extraction")
    wanted = Parent(kind="extraction", name="pp", sha256=sha256_file(folder / "manifest.json"))
    assert describe_parent(folder) == wanted
    monkeypatch.chdir(folder)
    assert describe_parent(Path()) == wanted, "the name is the folder's, however it is written"
