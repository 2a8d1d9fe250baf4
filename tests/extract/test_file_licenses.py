"""A block is under the license that the heads of its files state, and what is not permissive does not leave."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extract import ExtractOptions, extract
from extract.folder.verify import verify
from manifests.publishing.staged import stage_files
from manifests.records import Block, arrow_schema
from tests.builders.suites import read_files, read_table, write_files

TEXTS = read_files(__file__, "file_licenses.md")
NETWORK = TEXTS["NETWORK"]
RESERVED = "# Copyright (c) OpenMMLab. All rights reserved.\n"
GPL = f"{RESERVED}# This program is free software: you can redistribute it under the terms of the GNU General Public License, version 3\n"
#: By path: the text, the class in it, and the license of that class.
FILES = read_table(__file__, "file_licenses.md", "Files", globals())
EXPECTED = {name: license_ for _, name, license_ in FILES.values() if name}


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("sources") / "own"
    write_files(source, {path: text for path, (text, _, _) in FILES.items()})
    out = source.parent / "blocks"
    extract(source, out=out, options=ExtractOptions(level="compiled"), jobs=1)
    return out


def test_the_license_of_a_block_is_that_of_its_files(blocks: Path) -> None:
    rows = pq.read_table(blocks / "blocks.parquet").to_pylist()
    assert {row["name"]: row["license"] for row in rows} == EXPECTED
    assert all(f"\n# Licence: {row['license']}\n" in row["code"] for row in rows)
    said = {row["name"] for row in rows if RESERVED.replace("#", "\n# Notice: ") in row["code"]}
    assert said == {"Copyleft", "Reserved", "Uses"}
    assert "1 file of own (GPL-3.0 AND MIT)" in next(row["code"] for row in rows if row["name"] == "Uses")


def test_what_is_not_permissive_does_not_leave(blocks: Path, tmp_path: Path) -> None:
    with stage_files(blocks) as ready:
        for name, path in ready.files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, tmp_path / name)
    assert {item["license"]: item["blocks"] for item in ready.withheld} == {"GPL-3.0 AND MIT": 2, "NOASSERTION": 2}
    rows = pq.read_table(tmp_path / "blocks.parquet").to_pylist()
    assert {row["name"] for row in rows if row["code"] is not None} == {"Plain", "Apache", "Reserved"}
    assert not any("Copyleft(" in path.read_text() for path in tmp_path.rglob("*.py"))
    assert [check.name for check in verify(tmp_path) if not check.ok] == []
    without = [{**row, "code": None} for row in rows]
    pq.write_table(pa.Table.from_pylist(without, arrow_schema(Block)), tmp_path / "blocks.parquet")
    assert "blocks is missing" in next(check.detail for check in verify(tmp_path) if check.name == "blocks")
