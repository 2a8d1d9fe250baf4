"""Code whose license does not let it be passed on stays here; everything else of an extraction is published."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extract.folder.page import FACED
from extract.folder.verify import verify
from extract.migrate import choose_form
from extract.model.blocks import find
from extract.model.results import Result
from lemur_core.files.errors import UserError
from manifests.folders.kinds import check_files, check_table
from manifests.folders.manifest import list_outputs, read_manifest, write_manifest
from manifests.provenance import without_source
from manifests.publishing.staged import Staged, stage_files
from manifests.records import Block
from tests.builders import extractions


@pytest.fixture(scope="module")
def extraction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sources: alpha is MIT, beta GPL, gamma says nothing; four blocks of each have code."""
    base = tmp_path_factory.mktemp("staged")
    sources = [extractions.source(base, name) for name in ("alpha@1.0", "beta@2.0", "gamma@3.0")]
    extractions.write(base / "out", extractions.results(sources), sources)
    return base / "out"


@pytest.fixture
def folder(extraction: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(extraction, tmp_path / "copy"))


def copied(ready: Staged, out: Path) -> Path:
    for name, path in ready.files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out / name)
    return out


PAGE = {"index.html", "page/000.js"}
WITHHELD = [
    {"source": "beta@2.0", "license": "GPL-3.0-only", "blocks": 4},
    {"source": "gamma@3.0", "license": "NOASSERTION", "blocks": 4},
]


def test_what_leaves(folder: Path, tmp_path: Path, read: Callable[..., Any]) -> None:
    before = read(folder)
    for name in ("out", "again"):
        with stage_files(folder) as ready:
            out = copied(ready, tmp_path / name)
    after = read(out)
    with stage_files(tmp_path / "out") as once_more:  # of what was staged already, nothing more goes
        assert read(copied(once_more, tmp_path / "third")) == read(tmp_path / "out") == after
    assert read(folder) == before, "the folder itself stays as it is"
    gone = {name for name in before if name not in after}
    assert gone - PAGE == {name for name in before if name.startswith(("blocks/beta@2.0/", "blocks/gamma@3.0/"))}
    assert len(gone) == 8 + len(PAGE), "its page is published only where that is asked for"
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"blocks.parquet", "croissant.json", "manifest.json"}
    made = tmp_path / "made"
    made.mkdir()
    FACED.write_face(out, read_manifest(out), made)
    assert all((made / name).read_bytes() == after[name] for name in ("README.md", "croissant.json", "report.md"))
    old, new = (pq.read_table(place / "blocks.parquet").to_pylist() for place in (folder, out))
    for was, now in zip(old, new, strict=True):
        bare = {**was, "code": None, "error": was["error"] and without_source(was["error"])}
        assert now == (was if was["source"] == "alpha@1.0" else bare)
    assert {row["source"] for row in new if row["code"] is not None} == {"alpha@1.0"}
    assert check_table([out / "blocks.parquet"], Block).ok
    manifest, stated = read_manifest(out), read_manifest(folder)
    assert [(o.path, o.sha256, o.bytes) for o in manifest.outputs] == [
        (o.path, o.sha256, o.bytes) for o in list_outputs(out)
    ]
    assert {item.path: item.rows for item in manifest.outputs}["blocks.parquet"] == len(new) == 15
    assert (manifest.details, manifest.counts) == (stated.details | {"withheld": WITHHELD}, stated.counts)
    assert list(ready.withheld) == WITHHELD
    assert "(a published copy lacks those of 8)" in (out / "README.md").read_text()
    checks = {check.name: check.detail for check in verify(out)}
    assert checks["parses"] == checks["headers"].replace("of their block and license", "Python") == "4 files: Python"


def test_code_that_needs_a_guess_stays(tmp_path: Path) -> None:
    source = extractions.source(tmp_path, "alpha@1.0")
    guess = 'acme; extra == "guess"'
    names = {"Sure": ("einops",), "Unsure": ("einops", guess)}
    results = [Result(extractions.block(source, name, requires=needs), ()) for name, needs in names.items()]
    extractions.write(tmp_path / "out", results, [source])
    with stage_files(tmp_path / "out") as ready:
        assert [tuple(item.values()) for item in ready.withheld] == [("alpha@1.0", "requires acme, a guess", 1)]
        rows = pq.read_table(ready.files["blocks.parquet"]).to_pylist()
    assert {row["name"]: row["code"] is not None for row in rows} == {"Sure": True, "Unsure": False}
    row = extractions.block(source, "Unsure", requires=(guess,))
    with pytest.raises(UserError, match="extract it again with --distribution acme=NAME"):
        choose_form(tmp_path / "out", row)


def test_its_page_leaves_where_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    manifests = set()
    for page in (True, False):
        with stage_files(folder, page=page) as ready:
            out = copied(ready, tmp_path / str(page))
        assert PAGE & ready.files.keys() == (PAGE if page else set())
        assert check_files(out, read_manifest(out)).ok
        manifests.add((out / "manifest.json").read_bytes())
    assert len(manifests) == 1, "so what was made from one of them knows the other"
    shutil.rmtree(folder / "page")
    (folder / "index.html").unlink()
    with stage_files(folder, page=True) as ready:
        assert not PAGE & ready.files.keys(), "an older folder has none"


def test_no_line_of_it_stands_in_an_error(folder: Path, tmp_path: Path) -> None:
    table = pq.read_table(folder / "blocks.parquet")
    errors = [f"A(): ValueError: {n}\n (line {n}: secret = [(line)]\nof {n})" for n in range(len(table))]
    rows = [row | {"error": error} for row, error in zip(table.to_pylist(), errors, strict=True)]
    pq.write_table(pa.Table.from_pylist(rows, table.schema), folder / "blocks.parquet")
    with stage_files(folder) as ready:
        left = pq.read_table(ready.files["blocks.parquet"], columns=["source", "code_sha256", "error"]).to_pylist()
    for number, (row, error) in enumerate(zip(left, errors, strict=True)):
        hidden = row["source"] != "alpha@1.0" and row["code_sha256"] is not None
        assert row["error"] == (f"A(): ValueError: {number}\n (line {number})" if hidden else error)
        assert without_source(error) == f"A(): ValueError: {number}\n (line {number})"


def test_code_taken_in_from_elsewhere_counts_too(folder: Path, tmp_path: Path) -> None:
    """A block of the permissive source, made with a file of the other one."""
    path = folder / "required_repos.json"
    needs = json.loads(path.read_text())
    block = "alpha@1.0::alpha.blocks.Scale"
    (entry,) = [entry for entry in needs["blocks"] if entry["block"] == block]
    entry["made_from"]["beta@2.0"] = ["beta/parts.py"]
    path.write_text(json.dumps(needs))
    manifest = read_manifest(folder)
    write_manifest(folder, manifest.model_copy(update={"outputs": list_outputs(folder)}))
    with stage_files(folder) as ready:
        stated = json.loads(ready.files["manifest.json"].read_text())
        assert {"source": "alpha@1.0", "license": "GPL-3.0-only", "blocks": 1} in stated["details"]["withheld"]
        assert "blocks/alpha@1.0/alpha.blocks.Scale.py" not in ready.files
        assert "blocks/alpha@1.0/alpha.blocks.Attention.py" in ready.files


def test_a_source_that_is_not_known_is_not_permissive(folder: Path) -> None:
    path = folder / "required_repos.json"
    needs = json.loads(path.read_text())
    del needs["sources"]["alpha@1.0"]
    path.write_text(json.dumps(needs))
    with stage_files(folder) as ready:
        assert not [name for name in ready.files if name.startswith("blocks/")]
    assert any("MIT (not all known to be permissive: for local use)" in line for line in find(folder, "Scale").lines)


@pytest.mark.parametrize("text", ["", "[]", '{"sources": {}}', '{"sources": [], "blocks": []}'])
def test_without_the_licences_nothing_leaves(folder: Path, text: str) -> None:
    (folder / "required_repos.json").write_text(text)
    with pytest.raises(UserError, match=r"required_repos.json: cannot be read"), stage_files(folder):
        pass


def test_other_kinds_are_published_as_they_are(sample: Path) -> None:
    with stage_files(sample) as ready:
        assert all(path == sample / name for name, path in ready.files.items())
        assert ready.withheld == ()


@pytest.mark.parametrize("kind", ["snapshot", "synthesis"])
def test_codes_leave_if_their_licence_lets_them(sample: Path, finished: Callable[..., Path], kind: str) -> None:
    manifest = read_manifest(finished(sample, kind))
    for stated in ("MIT", "Apache-2.0 AND MIT", "GPL-3.0-only", "NOASSERTION", None):
        details = {"license": stated} if stated else {}
        write_manifest(sample, manifest.model_copy(update={"details": details}))
        if stated and "MIT" in stated:
            with stage_files(sample) as ready:
                assert "README.md" in ready.files
        else:
            with pytest.raises(UserError, match=r"the license of its codes .*; nothing was published: .*--license"):
                stage_files(sample).__enter__()


def test_there_and_back(
    server: Any, send: Callable[..., Any], fetch: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    repo = "owner/blocks"
    assert [item["blocks"] for item in send(folder, repo).withheld] == [4, 4]
    sent = b"".join(file.data for tree in server.repos[repo].trees.values() for file in tree.values())
    for row in pq.read_table(folder / "blocks.parquet").to_pylist():
        if row["code"] is not None and row["source"] != "alpha@1.0":
            assert row["code"].encode() not in sent
    assert not send(folder, repo).changes
    fetch("out", repo)
    rows = pq.read_table(tmp_path / "out" / "blocks.parquet").to_pylist()
    assert {row["source"] for row in rows if row["code"] is not None} == {"alpha@1.0"}
