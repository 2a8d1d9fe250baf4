"""Parents: what a manifest may say of the folders that its own was made from, and how a curation finds them."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.rows import Source
from curate.sources import open_source, open_sources
from curate.sources.provenance import parents_of
from lemur_core.files.atomic import sha256_file
from manifests.manifest import Manifest, Measured, Parent, list_outputs, parent_of, read_manifest, write_manifest

DIGEST = "0" * 64


def finish(folder: Path, kind: str = "sample") -> Parent:
    """Write the manifest of what lies in a folder. Returns: the folder as a parent."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = Measured(seconds=0, stage_seconds={}, peak_memory_bytes=1, platform="any")
    outputs = list_outputs(folder, {})
    empty: dict[str, dict[str, str]] = {"versions": {}, "parameters": {}, "counts": {}, "details": {}}
    write_manifest(folder, Manifest(kind=kind, inputs=[], outputs=outputs, measured=measured, **empty))
    return Parent(kind=kind, name=folder.name, sha256=sha256_file(folder / "manifest.json"))


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A finished folder with two tables of rows and a file that is none."""
    records = tmp_path / "snap" / "data" / "records"
    records.mkdir(parents=True)
    for split in ("train", "test"):
        pq.write_table(pa.table({"nn": [split], "nn_code": [f"x = '{split}'\n"]}), records / f"{split}.parquet")
    (tmp_path / "snap" / "README.md").write_text("# Snapshot\n")
    finish(tmp_path / "snap", "snapshot")
    return tmp_path / "snap"


@pytest.mark.parametrize("name", ["/pp", "a/../b", "..", "C:\\pp", "\\\\host\\pp", ""])
def test_no_path_of_a_machine_is_a_name(name: str) -> None:
    with pytest.raises(ValidationError):
        Parent(kind="extraction", name=name, sha256=DIGEST)


@given(st.from_regex(r"[A-Za-z0-9._@+ -]*[A-Za-z0-9]", fullmatch=True))
def test_a_bare_name_comes_back(name: str) -> None:
    parent = Parent(kind="extraction", name=name, sha256=DIGEST)
    assert Parent.model_validate_json(parent.model_dump_json()) == parent


def test_a_manifest_from_before_parents_is_read(tmp_path: Path) -> None:
    finish(tmp_path)
    older = json.loads((tmp_path / "manifest.json").read_text())
    assert older.pop("parents") == []
    (tmp_path / "manifest.json").write_text(json.dumps(older))
    assert read_manifest(tmp_path).parents == []


def test_a_folder_as_a_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = finish(tmp_path / "pp", "extraction")
    assert parent_of(tmp_path / "pp") == wanted
    monkeypatch.chdir(tmp_path / "pp")
    assert parent_of(Path()) == wanted, "the name is the folder's, however it is written"


def source_of(path: Path) -> Source:
    return open_source(str(path))


@pytest.mark.parametrize("place", ["data/records", "data/records/train.parquet"])
def test_rows_from_a_snapshot_have_it_as_parent(snapshot: Path, place: str) -> None:
    assert parents_of(source_of(snapshot / place)) == [parent_of(snapshot)]


def test_python_files_and_several_sources(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "code" / "blocks").mkdir(parents=True)
    (tmp_path / "code" / "blocks" / "a.py").write_text("x = 1\n")
    finish(tmp_path / "code", "extraction")
    assert parents_of(source_of(tmp_path / "code")) == [parent_of(tmp_path / "code")]
    both = open_sources([str(snapshot / "data" / "records"), str(tmp_path / "code" / "blocks")])
    assert parents_of(both) == [parent_of(tmp_path / "code"), parent_of(snapshot)]


def test_a_source_outside_has_none(snapshot: Path, tmp_path: Path) -> None:
    copy = shutil.copy(snapshot / "data" / "records" / "train.parquet", tmp_path / "rows.parquet")
    assert parents_of(source_of(copy)) == []
    shutil.copy(copy, snapshot / "data" / "more.parquet")
    assert parents_of(source_of(snapshot / "data" / "more.parquet")) == [], "not a file of the snapshot"


def test_what_was_changed_is_no_parent(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = snapshot / "data" / "records" / "train.parquet"
    pq.write_table(pa.table({"nn": ["other"], "nn_code": ["x = 2\n"]}), file)
    assert parents_of(source_of(file)) == []
    assert "data/records/train.parquet is not as its manifest.json states" in capsys.readouterr().err


def test_a_manifest_of_another_program_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "manifest.json").write_text('{"manifest_version": 3}')
    assert parents_of(source_of(tmp_path)) == []
