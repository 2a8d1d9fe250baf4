"""`croissant.json`: the library reads every row by it, and would write it so; the card says what users must know."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlcroissant as mlc
import pyarrow.parquet as pq
import pytest
import yaml

from lemur_core.files.atomic import sha256_file
from manifests.folders.cards import Card, card_text, croissant_text, restate_croissant
from manifests.folders.kinds import EXTRACTION, SNAPSHOT, Kind
from manifests.folders.manifest import Manifest, Output, Stopwatch, package_versions
from manifests.folders.tables import CROISSANT, Table, select_tables, write_table, write_tables
from manifests.records import Block, ChatRow, Decision, LemurRecord, arrow_schema

Row = dict[str, Any]

# of rdflib's parser, about a class that it uses itself
pytestmark = pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning")

CARD = Card("Some networks", "Networks and what became of them.", ["MIT"], "")
SHA = "ab" * 32


def record(number: int, split: str) -> Row:
    numbers = {"epoch": number, "accuracy": number / 8, "duration": 1e9, "weight": 1.0, "score": None}
    texts = {
        name: f"{name} {number} \u00e9" for name in ("nn", "nn_code", "task", "prm", "prefix", "family", "cluster")
    }
    flags = {"pretrained": number % 2 == 0, "runs": True, "runs_error": None}
    return {**texts, **numbers, **flags, "id": SHA, "split": split, "dataset": None, "metric": "acc"}


def decision(number: int) -> Row:
    place = {"row": number, "id": SHA, "nn": f"net-{number}", "kept": True, "stage": None, "rescued": None}
    return {**place, "canonical": None, "similarity": 0.5, "reason": "kept", "agreement": None}


def chat(number: int) -> Row:
    said = [{"role": role, "content": f"{role} {number}"} for role in ("system", "user", "assistant")]
    texts = {"task": "design", "variant": "file", "nn": "net", "record": SHA, "license": "MIT"}
    return {"messages": said, "id": SHA, **texts, "n_tokens": 3 * number}


def block(number: int) -> Row:
    row: Row = dict.fromkeys(Block.model_fields)
    texts = {name: f"{name} {number}" for name in ("block", "name", "qualname", "source", "path", "category", "swhid")}
    requires = [f"p{k}" for k in range(number)]
    return (
        row
        | texts
        | {"requires": requires, "start_line": 1, "end_line": 2, "level": "forward", "license": "MIT", "digest": SHA}
    )


def make_folder(folder: Path, sizes: dict[str, int]) -> list[Table]:
    """A folder with records by split, and the same number of each of the other rows as all of them together."""
    for split, size in sizes.items():
        rows = [record(number, split) for number in range(size)]
        write_tables(folder / "data" / "records", split, LemurRecord, rows, size)
        write_tables(folder / "data" / "chat", split, ChatRow, [chat(number) for number in range(size)], size)
    count = sum(sizes.values())
    write_table(folder / "decisions.parquet", arrow_schema(Decision), iter([decision(n) for n in range(count)]))
    write_table(folder / "blocks.parquet", arrow_schema(Block), iter([block(n) for n in range(count)]))
    filled = [split for split, size in sizes.items() if size]
    tables = [
        Table("records", LemurRecord, {split: f"data/records/{split}-*.parquet" for split in filled}),
        Table("chat", ChatRow, {split: f"data/chat/{split}-*.parquet" for split in filled}),
        Table("decisions", Decision, {"train": "decisions.parquet"}),
        Table("blocks", Block, {"train": "blocks.parquet"}),
    ]
    return tables if filled else []


@pytest.fixture
def tables(tmp_path: Path) -> list[Table]:
    """The tables of `tmp_path`, where nothing is in the split `validation`."""
    tables = make_folder(tmp_path, {"train": 5, "validation": 0, "test": 2})
    describe(tmp_path, tables)
    return tables


def describe(folder: Path, tables: list[Table], card: Card = CARD, kind: Kind = SNAPSHOT) -> Row:
    text = croissant_text(folder, card, tables, command=kind.command, tags=kind.tags, tool="0.1.0")
    (folder / CROISSANT).write_text(text)
    stated: Row = json.loads(text)
    return stated


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


def written(folder: Path, table: Table) -> list[Row]:
    """Rows as they lie in the files, which the library reads by name; each with its split where files tell it."""
    rows: list[Row] = []
    for path in sorted(table.paths(folder)):
        split = {"split": path.name.partition("-")[0]} if path.parent != folder else {}
        rows += [{**row, **split} for row in pq.read_table(path).to_pylist()]
    return rows


def test_the_library_reads_every_row(tmp_path: Path, tables: list[Table], caplog: pytest.LogCaptureFixture) -> None:
    for each in tables:
        found = read(tmp_path, each.config)
        assert len(found) == 7
        assert found == written(tmp_path, each)
    assert "Could not match" not in caplog.text
    for config in ("records", "chat"):
        assert [row["split"] for row in read(tmp_path, config, {f"{config}/split": "test"})] == ["test", "test"]


@pytest.mark.parametrize("splits", [("train", "validation", "test"), ("train",)], ids=len)
@pytest.mark.parametrize("kind", [EXTRACTION, SNAPSHOT], ids=lambda kind: kind.name)
def test_the_library_would_write_the_same(tmp_path: Path, kind: Kind, splits: tuple[str, ...]) -> None:
    tables = []
    for config, (record_type, patterns) in kind.tables.items():
        files = {split: pattern for split, pattern in patterns.items() if split in splits}
        for pattern in files.values():
            path = tmp_path / pattern.replace("*", "00000-of-00001")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_table(path, arrow_schema(record_type), iter([]))
        tables.append(Table(config, record_type, files))
    sources = [("alpha@1.0", "swh:1:dir:" + "a" * 40), ("beta@2.0", "swh:1:dir:" + "b" * 40)][: len(splits)]
    describe(tmp_path, tables, replace(CARD, sources=sources, disclosure=kind.disclosure), kind)
    text = (tmp_path / CROISSANT).read_text()
    metadata = mlc.Metadata.from_json(mlc.Context(), json.loads(text))
    assert json.dumps(metadata.to_json(), indent=2) + "\n" == text


#: What NeurIPS asks of data sets: https://neurips.cc, guidelines for RAI metadata, 2026.
REQUIRED = ("dataBiases", "dataCollection", "dataLimitations", "dataSocialImpact", "dataUseCases", "hasSyntheticData")


@pytest.mark.parametrize("kind", [EXTRACTION, SNAPSHOT], ids=lambda kind: kind.name)
def test_it_says_what_users_must_know(tmp_path: Path, kind: Kind) -> None:
    tables = make_folder(tmp_path, {"train": 1, "validation": 0, "test": 0})
    rows = {path.relative_to(tmp_path).as_posix(): 1 for table in tables for path in table.paths(tmp_path)}
    card = Card("A {name}", "Some rows.", ["MIT", "BSD-3-Clause"], "Text.", [("alpha@1.0", "swh:1:dir:" + "a" * 40)])
    empty: Row = {"parameters": {}, "counts": {}, "details": {}, "inputs": [], "outputs": []}
    manifest = Manifest(kind=kind.name, versions=package_versions(), measured=Stopwatch().measure(), **empty)
    replace(kind, card=lambda *_: card).write_face(tmp_path, manifest, tmp_path)
    own = (tmp_path / CROISSANT).read_text(), (tmp_path / "README.md").read_text()
    assert not any("arxiv" in text.lower() or '"lemur"' in text for text in own), "the paper is of LEMUR's networks"
    assert not {"citeAs", "url", "version"} & json.loads(own[0]).keys()
    replace(kind, card=lambda *_: replace(card, lemur="2.1.0")).write_face(tmp_path, manifest, tmp_path)
    stated = json.loads((tmp_path / CROISSANT).read_text())
    assert stated["conformsTo"] == ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"]
    assert all(isinstance(stated[f"rai:{name}"], bool if name.startswith("has") else (str, list)) for name in REQUIRED)
    assert stated["rai:hasSyntheticData"] is True, "conversations are built by templates"
    assert stated["rai:personalSensitiveInformation"]
    assert stated["prov:wasDerivedFrom"] == {"@id": "swh:1:dir:" + "a" * 40, "name": "alpha@1.0"}
    assert stated["prov:wasGeneratedBy"]["name"] == kind.command
    metadata = mlc.Metadata.from_json(mlc.Context(), stated)
    assert metadata.issues.errors == set()
    assert [str(issue) for issue in metadata.issues.warnings if "is recommended, but" not in str(issue)] == []
    metadata = mlc.Metadata.from_json(mlc.Context(), stated | {"datePublished": "2026-11-27"})
    assert metadata.issues.errors == set()
    text = (tmp_path / "README.md").read_text()
    yaml_, _, page = text.removeprefix("---\n").partition("---\n")
    facts = yaml.safe_load(yaml_)
    assert (facts["license"], facts["language"]) == (["bsd-3-clause", "mit"], ["en", "code"])
    assert (facts["annotations_creators"], "arxiv:2512.04329" in facts["tags"]) == (["machine-generated"], True)
    heads = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert heads == ["Collection", "Uses", "Biases, risks and limits", "Columns", "Citation"]
    for text in (*kind.disclosure.uses, *kind.disclosure.limits, *kind.disclosure.biases):
        assert f"- {text}" in page
    for shown in select_tables(kind.tables, rows):
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
    card = Card("n", "d", licenses, "")
    assert croissant in (..., describe(tmp_path, [], card).get("license"))
    about: Row = {"default": "", "size": 1, "tags": [], "source_datasets": ["original"], "tool": "0.1.0"}
    facts = yaml.safe_load(card_text(card, [], **about).split("---\n")[1])
    assert {key: value for key, value in facts.items() if key.startswith("license")} == stated


@pytest.mark.parametrize("filled", [(), ("train",), ("test", "train"), ("test", "train", "validation")], ids=len)
def test_whatever_splits_are_filled_it_is_the_same_again(tmp_path: Path, filled: tuple[str, ...]) -> None:
    both = []
    for name in ("one", "two"):
        tables = make_folder(
            tmp_path / name, {split: int(split in filled) for split in ("train", "validation", "test")}
        )
        both.append(describe(tmp_path / name, tables))
    data = [node["data"] for node in both[0].get("recordSet", []) if node["@id"] == "splits"]
    rows = [row for each in data for row in (each if isinstance(each, list) else [each])]
    assert sorted(row["splits/name"].rpartition("/")[2] for row in rows) == list(filled)
    assert both[0] == both[1]


def test_digests_can_be_restated(tmp_path: Path, tables: list[Table]) -> None:
    before = (tmp_path / CROISSANT).read_bytes()
    path = tmp_path / "decisions.parquet"
    older = Output(path=path.name, sha256=sha256_file(path), bytes=path.stat().st_size)
    write_table(path, arrow_schema(Decision), iter([decision(9)]))
    changed = Output(path=path.name, sha256=sha256_file(path), bytes=path.stat().st_size)
    with pytest.raises(mlc.GenerationError, match=r"Download\(decisions\.parquet\)"):
        read(tmp_path, "decisions")
    restate_croissant(tmp_path / CROISSANT, tmp_path / "new", [changed])
    restate_croissant(tmp_path / "new", tmp_path / "old", [older])
    assert (tmp_path / "old").read_bytes() == before
    (tmp_path / "new").replace(tmp_path / CROISSANT)
    assert read(tmp_path, "decisions") == [decision(9)]
