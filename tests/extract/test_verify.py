"""`lemur verify` of an extraction folder: a valid one passes every check, and each fault fails the right one."""

import ast
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extract import BlockLibrary
from extract.folder.verify import import_faults, verify
from extract.model.blocks import find
from extract.model.results import Result, code_columns
from extract.resolve.standins import replacement_source
from extract.specs.make import write_specs
from lemur_core.files.errors import UserError
from lemur_core.source.quality import find_undefined_names
from manifests.folders.cards import restate_croissant
from manifests.folders.kinds import Check
from manifests.folders.manifest import list_outputs, read_manifest, write_manifest
from manifests.records import Block, arrow_schema
from tests.builders import extractions
from tests.builders.suites import table

CHECKS = ["digests", "schema Block", "schema SpecRow", "derived", "blocks", "requirements", "sources"]
CHECKS += ["parses", "undefined names", "imports", "headers", "lean forms", "graphs", "page"]
ID = "alpha@1.0::alpha.blocks.Scale"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("verify")
    sources = [extractions.source(base, name) for name in ("alpha@1.0", "beta@2.0")]
    extractions.write(base / "out", extractions.results(sources), sources)
    return base / "out"


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "copy"))


def failed(folder: Path, *, refresh: bool = True) -> dict[str, str]:
    """Return failing checks with their messages. `refresh`: first update the digests in the manifest."""
    if refresh:
        manifest = read_manifest(folder)
        described = folder / "croissant.json"
        if described.exists():
            restate_croissant(described, described, list_outputs(folder))
        write_manifest(folder, manifest.model_copy(update={"outputs": list_outputs(folder)}))
    checks: list[Check] = verify(folder, jobs=1)
    return {check.name: check.detail for check in checks if not check.ok}


def change_rows(folder: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    rows = pq.read_table(folder / "blocks.parquet").to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(Block)), folder / "blocks.parquet")


def change_code(folder: Path, code: str, **changes: Any) -> None:
    """Replace the code of the block `Scale` consistently: table, digest, file and specs."""

    def change(rows: list[dict[str, Any]]) -> None:
        row = next(row for row in rows if row["block"] == ID)
        row.update({**code_columns(code), **changes})
        (folder / row["file"]).write_text(code, encoding="utf-8")
        write_specs(folder / "specs.jsonl", [Block.model_validate(row) for row in rows], {})

    change_rows(folder, change)


def code(body: str) -> str:
    text: str = extractions.code_of(ID, "MIT", body)
    return text


def test_a_sound_folder(sound: Path) -> None:
    checks = verify(sound)
    assert [check.name for check in checks] == CHECKS
    assert [check.detail for check in checks if not check.ok] == []
    assert checks[3].detail == "17 files made again by the writer: no cell and no line differs"
    assert checks[7].detail == "8 files: Python"


def test_many_blocks_are_shared_out_among_processes(tmp_path: Path) -> None:
    source = extractions.source(tmp_path)
    rows = [extractions.block(source, f"B{n:03}") for n in range(70)]
    lost = extractions.code_of(rows[65].block, "MIT", "import lost\n")
    rows[65] = extractions.block(source, "B065", **code_columns(lost))
    extractions.write(tmp_path / "out", [extractions.Result(row) for row in rows], [source])
    found = failed(tmp_path / "out", refresh=False)
    assert found == {"imports": f"{rows[65].block}: line 6: imports lost, which it does not require"}


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("file", "../../decoy/secret.py", "file: must be a file in blocks/"),
        ("file", "blocks/a/../../secret.py", "file: must be a file in blocks/"),
        ("path", "../../../etc/passwd", "path: must be a path in its source"),
        ("path", "/etc/passwd", "path: must be a path in its source"),
    ],
)
def test_no_path_leads_out_of_a_foreign_folder(folder: Path, field: str, value: str, says: str) -> None:
    change_rows(folder, lambda rows: [row.update({field: value}) for row in rows])
    lines = [json.loads(line) | {field: value} for line in (folder / "specs.jsonl").read_text().splitlines()]
    (folder / "specs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert failed(folder)["schema Block"] == f"blocks.parquet: {says}"
    library = BlockLibrary(folder)
    for read in (partial(find, folder, "Scale"), partial(library.search, "scale"), partial(list, library)):
        with pytest.raises(UserError, match=says):
            read()


def test_stand_ins_of_ours_are_a_source_of_a_sound_folder(tmp_path: Path) -> None:
    source, own = extractions.source(tmp_path), replacement_source()
    files = ((source.name, "alpha/blocks.py"), (own.name, own.files[0].path))
    extractions.write(tmp_path / "out", [Result(extractions.block(source, "Scale"), files)], [source])
    assert failed(tmp_path / "out", refresh=False) == {}
    path = tmp_path / "out" / "required_repos.json"
    path.write_text(path.read_text().replace('"license": "MIT"', '"license": "ISC"'))
    assert "lemur-curator: license is not MIT" in failed(tmp_path / "out")["sources"]


def test_a_table_without_a_column(folder: Path) -> None:
    table = pq.read_table(folder / "blocks.parquet").drop_columns(["license"])
    pq.write_table(table, folder / "blocks.parquet")
    assert failed(folder) == {
        "schema Block": "blocks.parquet: no column license",
        "extraction": "not checked further: its tables cannot be trusted",
    }


@table(__file__, "verify.md", "Code that is wrong", globals())
def test_code_that_is_wrong(folder: Path, body: str, check: str, says: str) -> None:
    change_code(folder, code(body))
    assert says in failed(folder)[check]


def test_a_block_may_fail_to_parse_if_it_says_so(folder: Path) -> None:
    change_code(folder, code("x = (\n"), level="emitted", error_kind="syntax_error", error="does not parse")
    assert "parses" not in failed(folder)


def test_a_header_that_names_another_block(folder: Path) -> None:
    change_code(folder, extractions.code_of("alpha@1.0::other.Scale", "ISC"))
    found = failed(folder)["headers"]
    assert f"{ID}: its header names 'alpha@1.0::other.Scale' as Block, not '{ID}'" in found
    assert f"{ID}: its header names 'ISC' as Licence, not 'MIT'" in found
    change_code(folder, "import torch\n" + code(""))
    assert f"{ID}: its header names None as Block" in failed(folder)["headers"]


def test_entries_of_other_blocks(folder: Path) -> None:
    path = folder / "required_repos.json"
    needs = json.loads(path.read_text())
    path.write_text(json.dumps({**needs, "blocks": needs["blocks"][1:]}))
    assert failed(folder)["requirements"].startswith("its blocks are not those of the table that have code")
    path.write_text(json.dumps({**needs, "sources": {}}))
    assert "its source alpha@1.0 is not listed" in failed(folder)["requirements"]
    for text in ("{", "[]", '{"blocks": 1, "sources": {}}', '{"blocks": [{}], "sources": {}}'):
        path.write_text(text)
        assert failed(folder).keys() >= {"extraction"}


SCALE = 1  # line of the specs, from 0


def change_spec(folder: Path, change: Callable[[str], str]) -> str:
    """Return the check `derived` after the line of `Scale` was changed."""
    path = folder / "specs.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[SCALE] = change(lines[SCALE])
    path.write_text("".join(lines), encoding="utf-8")
    return failed(folder).get("derived", "")


def with_facts(**changes: Any) -> Callable[[str], str]:
    return lambda line: json.dumps(json.loads(line) | changes, sort_keys=True, ensure_ascii=False) + "\n"


@table(__file__, "verify.md", "A spec that is wrong", globals())
def test_a_spec_that_is_wrong(folder: Path, change: Callable[[str], str], says: str) -> None:
    assert says in change_spec(folder, change)


def test_a_folder_without_specs(folder: Path) -> None:
    (folder / "specs.jsonl").unlink()
    assert failed(folder).keys() == {"derived", "graphs"}


@table(__file__, "verify.md", "Imports", globals())
def test_imports(text: str, requires: list[str], own: set[str], wrong: int) -> None:
    assert len(import_faults(ast.parse(text), requires, frozenset(own))) == wrong


def test_a_name_that_is_read_before_its_own_function_binds_it_is_not_undefined() -> None:
    text = "def f():\n    print(x)\n    x = 1\nclass A:\n    b = 1\n    def c(self):\n        return b\n"
    assert list(find_undefined_names(ast.parse(text))) == ["b"]


def test_a_manifest_without_a_level(folder: Path) -> None:
    manifest = read_manifest(folder)
    for level in (None, "flown", 3):
        parameters = {**manifest.parameters, "level": level}
        write_manifest(folder, manifest.model_copy(update={"parameters": parameters, "details": {"withheld": [{}]}}))
        assert failed(folder)["blocks"].startswith(f"the manifest's level is {level!r}, not one of discovered, ")
