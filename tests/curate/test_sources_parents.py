"""The finished folders that the rows of a curation come from."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.sources import find_source_parents, open_source, open_sources
from manifests.folders.manifest import Parent, describe_parent


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
    assert parents(Path(shutil.copy(copy, snapshot / "data" / "more.parquet"))) == [], "not a file of the snapshot"


def test_what_was_changed_is_no_parent(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = snapshot / "data" / "records" / "train.parquet"
    pq.write_table(pa.table({"nn": ["other"], "nn_code": ["x = 2\n"]}), file)
    assert parents(file) == []
    assert "data/records/train.parquet differs from its manifest.json" in capsys.readouterr().err


def test_a_manifest_of_another_program_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "manifest.json").write_text('{"manifest_version": 3}')
    assert parents(tmp_path) == []
