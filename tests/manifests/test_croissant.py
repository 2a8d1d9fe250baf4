"""`croissant.json`: the library reads every row by it, and would write it so; the card says what users must know."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlcroissant as mlc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from extract.folder.page import FACED
from lemur_core.files.atomic import sha256_file
from manifests.folders.cards import (
    EXTRACTION_DISCLOSURE,
    SNAPSHOT_DISCLOSURE,
    Card,
    Disclosure,
    card_text,
    croissant_text,
    restate_croissant,
)
from manifests.folders.kinds import EXTRACTION, SNAPSHOT, Kind
from manifests.folders.manifest import Output, list_outputs, read_manifest
from manifests.folders.tables import CROISSANT, Table, select_tables, write_table, write_tables
from manifests.records import CHAT_ROLES, SpecChatRow, arrow_schema
from tests.builders import extractions

Row = dict[str, Any]

# of rdflib's parser, about a class that it uses itself
pytestmark = pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning")

CARD = Card("Some networks", "Networks and what became of them.", ["MIT"], "", SNAPSHOT_DISCLOSURE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An extraction with conversations: lists, structs, splits, and values that are missing."""
    base = tmp_path_factory.mktemp("croissant")
    sources = [extractions.source(base, f"{name}@1.0") for name in ("alpha", "beta", "gamma", "delta")]
    made = extractions.write(base / "out", extractions.results(sources), sources)
    said = [{"role": role, "content": f"as {role}"} for role in CHAT_ROLES]
    place = {"source": "alpha@1.0", "path": "a.py", "start_line": 1, "end_line": 2, "swhid": "x", "license": "MIT"}
    about = {"messages": said, "task": "write", "block": "a::b", **place, "notice": "n"}
    for number, split in enumerate(("train", "test"), 1):
        row = {"id": f"{number:064x}", **about, "n_tokens": number}
        write_tables(base / "out" / "data" / "chat", split, SpecChatRow, [row], 1)
    FACED.write_face(base / "out", made, base / "out")
    return base / "out"


def tables_of(folder: Path) -> list[Table]:
    return select_tables(EXTRACTION.tables, {item.path: item.rows or 0 for item in list_outputs(folder)})


def plain(value: Any) -> Any:
    """A value as the library reads it, as Arrow reads it: text is bytes there, members have the names of fields."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name.rpartition("/")[2]: plain(item) for name, item in value.items()}
    return value


def read(folder: Path, config: str, filters: dict[str, str] | None = None) -> list[Row]:
    return [plain(row) for row in mlc.Dataset(jsonld=folder / CROISSANT).records(config, filters)]


def test_the_library_reads_every_row(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for each in tables_of(folder):
        written = {}
        for path in each.paths(folder):
            # What the library makes of a list of structs that is null is its own.
            flat = [
                field.name
                for field in pq.read_schema(path)
                if each.name != "specs" or not pa.types.is_nested(field.type)
            ]
            split = {} if path.parent == folder else {"split": path.name.partition("-")[0]}
            written |= {
                (row.get("id") or row["block"]): row | split for row in pq.read_table(path, columns=flat).to_pylist()
            }
        found = {(row.get("id") or row["block"]): row for row in read(folder, each.name)}
        assert {key: {name: found[key][name] for name in row} for key, row in written.items()} == written
        assert len(found) == len(written) > 1
    assert "Could not match" not in caplog.text
    assert [row["split"] for row in read(folder, "chat", {"chat/split": "test"})] == ["test"]


@pytest.mark.parametrize("splits", [(), ("train",), ("test", "train"), ("train", "validation", "test")], ids=len)
@pytest.mark.parametrize("kind", [EXTRACTION, SNAPSHOT], ids=lambda kind: kind.name)
def test_the_library_would_write_the_same(tmp_path: Path, kind: Kind, splits: tuple[str, ...]) -> None:
    rows = {}
    for table in kind.tables:
        for split in table.files.keys() & set(splits):
            path = tmp_path / table.files[split].replace("*", "00000-of-00001")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_table(path, arrow_schema(table.record), iter([]))
            rows[path.relative_to(tmp_path).as_posix()] = 1
    sources = [("alpha@1.0", "swh:1:dir:" + "a" * 40), ("beta@2.0", "swh:1:dir:" + "b" * 40)][: len(splits)]
    tables = select_tables(kind.tables, rows)
    text = croissant_text(
        tmp_path, replace(CARD, sources=sources), tables, command=kind.command, tags=kind.tags, tool="0.1.0"
    )
    if splits:
        metadata = mlc.Metadata.from_json(mlc.Context(), json.loads(text))
        assert json.dumps(metadata.to_json(), indent=2) + "\n" == text
    data = [node["data"] for node in json.loads(text).get("recordSet", []) if node["@id"] == "splits"]
    stated = [row["splits/name"] for each in data for row in (each if isinstance(each, list) else [each])]
    assert sorted(stated) == sorted(splits)


#: What NeurIPS asks of data sets: https://neurips.cc, guidelines for RAI metadata, 2026.
REQUIRED = ("dataBiases", "dataCollection", "dataLimitations", "dataSocialImpact", "dataUseCases", "hasSyntheticData")


@pytest.mark.parametrize("disclosure", [EXTRACTION_DISCLOSURE, SNAPSHOT_DISCLOSURE])
def test_it_says_what_users_must_know(folder: Path, tmp_path: Path, disclosure: Disclosure) -> None:
    sources = [("alpha@1.0", "swh:1:dir:" + "a" * 40)]
    card = Card("A {name}", "Some rows.", ["MIT", "BSD-3-Clause"], "Text.", disclosure, sources)
    manifest = read_manifest(folder)
    replace(EXTRACTION, card=lambda *_: card).write_face(folder, manifest, tmp_path)
    own = (tmp_path / CROISSANT).read_text(), (tmp_path / "README.md").read_text()
    assert not any("arxiv" in text.lower() or '"lemur"' in text for text in own), "the paper is of LEMUR's networks"
    assert not {"citeAs", "url", "version"} & json.loads(own[0]).keys()
    replace(EXTRACTION, card=lambda *_: replace(card, lemur="2.1.0")).write_face(folder, manifest, tmp_path)
    stated = json.loads((tmp_path / CROISSANT).read_text())
    assert stated["conformsTo"] == ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"]
    assert all(isinstance(stated[f"rai:{name}"], bool if name.startswith("has") else (str, list)) for name in REQUIRED)
    assert stated["rai:hasSyntheticData"] is True, "conversations are built by templates"
    assert stated["rai:personalSensitiveInformation"]
    assert stated["prov:wasDerivedFrom"] == {"@id": "swh:1:dir:" + "a" * 40, "name": "alpha@1.0"}
    assert stated["prov:wasGeneratedBy"]["name"] == "lemur extract"
    metadata = mlc.Metadata.from_json(mlc.Context(), stated)
    assert metadata.issues.errors == set()
    assert [str(issue) for issue in metadata.issues.warnings if "is recommended, but" not in str(issue)] == []
    text = (tmp_path / "README.md").read_text()
    yaml_, _, page = text.removeprefix("---\n").partition("---\n")
    facts = yaml.safe_load(yaml_)
    assert (facts["license"], facts["language"]) == (["bsd-3-clause", "mit"], ["en", "code"])
    assert (facts["annotations_creators"], "arxiv:2512.04329" in facts["tags"]) == (["machine-generated"], True)
    assert [item["config_name"] for item in facts["configs"] if item.get("default")] == ["blocks"]
    heads = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert heads == ["Collection", "Uses", "Biases, risks and limits", "Columns", "Citation"]
    for text in (*disclosure.uses, *disclosure.limits, *disclosure.biases):
        assert f"- {text}" in page
    for shown in tables_of(folder):
        for name, info in shown.record.model_fields.items():
            assert f"| `{name}` | " in page
            assert (info.description or "").split("|")[0] in page
    assert "title = {A \\{name\\}}" in page


SPDX = "https://spdx.org/licenses/"


@pytest.mark.parametrize(
    ("licenses", "croissant", "stated"),
    [
        (["MIT"], f"{SPDX}MIT", {"license": "mit"}),
        (["Apache-2.0", "MIT"], [f"{SPDX}Apache-2.0", f"{SPDX}MIT"], {"license": ["apache-2.0", "mit"]}),
        (["MIT OR Apache-2.0"], "MIT OR Apache-2.0", {"license": "other", "license_name": "MIT OR Apache-2.0"}),
        (["GPL-3.0-only", "GPL-3.0-or-later"], ..., {"license": "gpl-3.0"}),
        (["MIT", "NOASSERTION"], None, {"license": "unknown"}),
        (["MIT", "MIT AND NOASSERTION"], ..., {"license": "unknown"}),
        (["Apache-2.0 AND MIT", "MIT"], ..., {"license": ["apache-2.0", "mit"]}),
        (["MIT", "MIT AND PSF-2.0"], ..., {"license": "other", "license_name": "MIT AND PSF-2.0"}),
        ([], None, {}),
    ],
)
def test_licenses(tmp_path: Path, licenses: list[str], croissant: object, stated: dict[str, str]) -> None:
    card, about = replace(CARD, licenses=licenses), {"tags": (), "tool": "0.1.0"}
    described = json.loads(croissant_text(tmp_path, card, [], command="x", **about))
    assert croissant in (..., described.get("license"))
    facts = yaml.safe_load(card_text(card, [], size=1, source_datasets=["original"], **about).split("---\n")[1])
    assert {key: value for key, value in facts.items() if key.startswith("license")} == stated


def test_digests_can_be_restated(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    before, path = (copy / CROISSANT).read_bytes(), copy / "blocks.parquet"
    older = Output(path=path.name, sha256=sha256_file(path), bytes=path.stat().st_size)
    pq.write_table(pq.read_table(path).slice(1), path)
    changed = Output(path=path.name, sha256=sha256_file(path), bytes=path.stat().st_size)
    with pytest.raises(mlc.GenerationError, match=r"Download\(blocks\.parquet\)"):
        read(copy, "blocks")
    restate_croissant(copy / CROISSANT, tmp_path / "new", [changed])
    restate_croissant(tmp_path / "new", tmp_path / "old", [older])
    assert (tmp_path / "old").read_bytes() == before
    (tmp_path / "new").replace(copy / CROISSANT)
    assert read(copy, "blocks") == read(folder, "blocks")[1:]
