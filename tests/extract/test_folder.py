"""The extraction folder: it reads back as written, its file names are safe, its bytes are the same in every run."""

import hashlib
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extract.folder.write import code_paths
from extract.model.blocks import read_block, read_blocks
from extract.model.results import code_columns
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.kinds import EXTRACTION
from manifests.folders.manifest import read_manifest
from manifests.records import Block, Spec, arrow_schema
from tests.builders import extractions

FACTS: dict[str, Any] = {"unopened": (("gamma", "no such release"),), "notes": ["a note"]}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Any]:
    folder = tmp_path_factory.mktemp("sources")
    return [extractions.source(folder, name) for name in ("alpha@1.0", "beta@2.0")]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, sources: Sequence[Any]) -> Path:
    out = tmp_path_factory.mktemp("out") / "blocks"
    extractions.write(out, extractions.results(sources), sources, **FACTS)
    return out


def test_every_file_is_there(written: Path) -> None:
    files = {path.relative_to(written).as_posix() for path in written.rglob("*") if path.is_file()}
    names = ("Attention", "Scale", "Broken", "Einops")
    code = {f"blocks/{s}/{s[:-4]}.blocks.{name}.py" for s in ("alpha@1.0", "beta@2.0") for name in names}
    named = "blocks.parquet specs.jsonl required_repos.json README.md croissant.json report.md manifest.json"
    specs = {f"data/specs/{split}-00000-of-00001.parquet" for split in ("train", "validation", "test")}
    assert files == code | specs | {*named.split(), "index.html", "page/000.js"}


def test_the_table_is_what_came_in(written: Path, sources: Sequence[Any]) -> None:
    rows = [result.row for result in extractions.results(sources)]
    read = [Block.model_validate(vars(row)) for row in read_blocks(written)]
    assert [row.model_copy(update={"file": None}) for row in read] == rows
    assert pq.read_schema(written / "blocks.parquet").names == arrow_schema(Block).names
    for place, row in enumerate(read):
        assert read_block(written, place) == row
        assert (row.file is None) == (row.code is None)
        if row.file is not None:
            assert (written / row.file).read_bytes() == (row.code or "").encode()
    with pytest.raises(IndexError):
        read_block(written, len(read))
    lines = (written / "specs.jsonl").read_text(encoding="utf-8").splitlines()
    specs = [Spec.model_validate_json(line) for line in lines]
    assert [(spec.block, spec.file) for spec in specs] == [(r.block, r.file) for r in read if r.code is not None]


def test_a_row_of_any_group_is_found(tmp_path: Path, sources: Sequence[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manifests.folders.tables._ROWS_PER_GROUP", 3)
    extractions.write(tmp_path / "out", extractions.results(sources), sources)
    assert pq.ParquetFile(tmp_path / "out" / "blocks.parquet").num_row_groups == 4
    blocks = [row.block for row in read_blocks(tmp_path / "out", ["block"])]
    assert [read_block(tmp_path / "out", place).block for place in range(10)] == blocks


def test_the_manifest(written: Path, sources: Sequence[Any]) -> None:
    manifest = EXTRACTION.open(written)
    assert manifest.kind == "extraction"
    asked = {"level": "executed", "corpus": "made", "seed": 42, "chat": None, "sources": [], "limit": None}
    assert asked.items() <= manifest.parameters.items()
    assert manifest.counts["specs"] == {"train": 8, "validation": 0, "test": 0, "groups": 1}
    assert [(item.name, item.sha256) for item in manifest.inputs] == [(s.name, s.digest) for s in sources]
    assert [item.bytes for item in manifest.inputs] == [20, 19]
    assert manifest.counts["reached"]["executed"] == 6
    assert manifest.details["unopened"] == {"gamma": "no such release"}
    assert manifest.details["notes"] == ["a note"]
    facts = {item["name"]: item for item in manifest.details["sources"]}
    assert facts["beta@2.0"]["license"] == "GPL-3.0-only"
    assert facts["beta@2.0"]["swhid"] == sources[1].swhid
    assert {"torch", "torchvision", "numpy", "lemur-curator"} <= manifest.versions.keys()
    outputs = {item.path: item for item in manifest.outputs}
    assert outputs["blocks.parquet"].rows == 10
    assert outputs["specs.jsonl"].rows == 8
    assert all(outputs[name].sha256 == sha256_file(written / name) for name in outputs)


def test_two_runs_give_the_same_bytes(written: Path, tmp_path: Path, sources: Sequence[Any]) -> None:
    extractions.write(tmp_path / "again", extractions.results(sources), sources, **FACTS)
    ours = {path.relative_to(written).as_posix(): path for path in written.rglob("*") if path.is_file()}
    for name, path in ours.items():
        if name not in ("report.md", "manifest.json"):
            assert (tmp_path / "again" / name).read_bytes() == path.read_bytes(), name
    both = (written, tmp_path / "again")
    one, other = (re.sub(r"## This run.*?\n## ", "", (f / "report.md").read_text(), flags=re.DOTALL) for f in both)
    assert one == other
    first, second = (read_manifest(folder).model_dump(exclude={"measured", "outputs"}) for folder in both)
    assert first == second


def test_a_source_that_changed_meanwhile_is_named(tmp_path: Path) -> None:
    source = extractions.source(tmp_path)
    (source.root / "alpha" / "parts.py").unlink()
    with pytest.raises(UserError, match=r"alpha@1\.0: .*parts\.py: .*run again"):
        extractions.write(tmp_path / "out", [], [source])
    assert not (tmp_path / "out").exists()


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "blocks.parquet").write_bytes(b"no table")
    for read in (lambda: read_blocks(tmp_path), lambda: read_block(tmp_path, 0)):
        with pytest.raises(UserError, match="damaged extraction"):
            read()


@pytest.mark.parametrize(
    ("code", "lines"), [("", 0), ("a = 1", 1), ("a = 1\n", 1), ("a = 1\n\x0c\nb\x85 = 2\n", 3), (None, None)]
)
def test_columns_of_code(code: str | None, lines: int | None) -> None:
    found = code_columns(code)
    assert found["n_lines"] == lines
    assert found["code_sha256"] == (None if code is None else hashlib.sha256(code.encode()).hexdigest())


RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
parts = st.one_of(
    st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=6),
    st.sampled_from(["aux", "NUL", "", "..", "é", "网", "a b", "a/b", "a\\b", "a:b", "x" * 200, "com1", "-"]),
)
ids = st.tuples(
    st.sampled_from(["timm@1.0", "Timm@1.0", "aux", "a/b", ".", "a."]), st.lists(parts, min_size=1, max_size=3)
).map(lambda item: f"{item[0]}::{'.'.join(item[1])}")


@given(st.lists(ids, unique=True, max_size=12))
@example(["timm@1.0::a.Attention", "timm@1.0::a.attention", "timm@1.0::a.ATTENTION"])
@example(["Timm@1.0::a.B", "timm@1.0::a.B", "timm@1.0::a.b"])
@example(["s::aux.B", "s::" + "x" * 500, "s::..", "s::é", "s::e\u0301"])
def test_file_names_are_safe_and_unique(blocks: list[str]) -> None:
    paths = code_paths(blocks)
    assert paths.keys() == set(blocks)
    assert len({path.lower() for path in paths.values()}) == len(blocks)
    folders: dict[str, str] = {}
    for block, path in paths.items():
        top, folder, name = path.split("/")
        assert top == "blocks"
        assert name.endswith(".py")
        for part in (folder, name):
            assert re.fullmatch(r"[A-Za-z0-9_@+-][A-Za-z0-9._@+-]*", part)
            assert len(part) <= 250
            assert part.partition(".")[0].lower() not in RESERVED
            assert not part.endswith(".")
        assert folders.setdefault(block.partition("::")[0], folder) == folder
    assert len({folder.lower() for folder in folders.values()}) == len(folders)
    assert code_paths(reversed(blocks)) == paths


def test_file_names() -> None:
    blocks = ["s::a b.C", "s::a.B", "s::a.b"]
    paths = ["blocks/s/a_b.C-47b74a67.py", "blocks/s/a.B.py", "blocks/s/a.b-1d0c82af.py"]
    assert code_paths(blocks) == dict(zip(blocks, paths, strict=True))
