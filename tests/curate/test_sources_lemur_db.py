"""LEMUR's database on a Hub of this machine: fetched, checked, unpacked once, and every failure in one line."""

import hashlib
import json
import sqlite3
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.hf_api import RepoFile

from curate.folder.reference_corpus import ReferenceCorpus
from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_source
from curate.sources.services import REPOSITORY
from lemur.desk.gate import gate
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError
from lemur_core.similarity.minhash import SCHEME
from manifests.folders.manifest import read_manifest
from tests.builders.fake_hub import FakeHub, File
from tests.builders.source_rows import error_of, rows_of
from tests.curate.conftest import network
from tests.curate.test_sources_database import make, packed, run

zstandard = pytest.importorskip("zstandard", reason="nn-dataset compresses with it")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "cache"))
    server = FakeHub(tmp_path / "hub-cache")
    server.install(monkeypatch)
    return server


def put(server: Any, tmp_path: Path, codes_of: dict[str, dict[str, str]], lfs: bool = True, **card: str) -> Any:
    """Put a database a version on the Hub, each with one run a network."""
    repo = server.repos.get(REPOSITORY) or server.make(REPOSITORY)
    repo.card |= card
    tree = dict(repo.trees[repo.branches["main"]])
    for version, codes in codes_of.items():
        folder = tmp_path / f"made-{len(repo.log)}-{version}"
        folder.mkdir()
        path = packed(make(folder / "ab.nn.db", codes, [run(name) for name in codes]), f"ab.nn.zst-{version}")
        tree[path.name] = File(path.read_bytes(), lfs=lfs)
    repo.commit("main", {**tree, "README.md": File(b"# LEMUR\n"), "x": File(b"y")})
    return repo


def names_of(spec: str) -> list[str]:
    return [row["nn"] for row in rows_of(open_source(spec))]


@pytest.mark.parametrize("lfs", [True, False])
def test_a_version_is_unpacked_once(server: Any, tmp_path: Path, lfs: bool) -> None:
    repo = put(server, tmp_path, {"2.2.9": {"a": "x = 1"}, "2.2.11": {"b": "x = 2"}, "2.2.10": {"c": "x = 3"}}, lfs)
    assert names_of("lemur-db@2.2.10") == ["c"]
    source = open_source("lemur-db")  # the newest by version, not by text
    assert source.name == "lemur-db"
    assert [row["nn"] for row in rows_of(source)] == ["b"]
    assert source.name == "lemur-db@2.2.11"
    stored = repo.trees[repo.branches["main"]]["ab.nn.zst-2.2.11"]
    [told] = source.inputs()
    digest = hashlib.sha256(stored.data).hexdigest()
    assert (told.name, told.sha256, told.bytes) == ("ab.nn.zst-2.2.11", digest, len(stored.data))
    assert server.requests["hf_hub_download"] == 2
    assert names_of("lemur-db") == names_of("lemur-db@2.2.11") == ["b"]
    kept = [path.suffix for path in cache_folder("lemur-db").iterdir()]
    assert kept == [".db", ".db"], "each is unpacked once"


def test_what_changed_on_the_hub_is_fetched_anew(server: Any, tmp_path: Path) -> None:
    put(server, tmp_path, {"2.2.11": {"a": "x = 1"}})
    assert names_of("lemur-db@2.2.11") == ["a"]
    put(server, tmp_path, {"2.2.11": {"b": "x = 2"}})
    assert names_of("lemur-db@2.2.11") == ["b"]


def test_the_gate_compares_with_it(server: Any, tmp_path: Path) -> None:
    put(server, tmp_path, {"2.2.11": {f"n{number}": network([number] * 6) for number in range(5)}})
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "again.py").write_text(f"# again\n{network([4] * 6)}")
    (file,) = gate([str(tmp_path / "new")], against=["lemur-db"], jobs=1).files
    assert [finding.message for finding in file.findings if finding.rule == "new"] == [
        "near by text, near by structure: n4 (text 1.000, structure 1.000; lemur-db@2.2.11)"
    ]


@pytest.mark.slow
def test_the_gate_holds_a_part_of_it_at_a_time(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "# what nobody compares, but everybody would hold\n" * 1_000
    put(server, tmp_path, {"2.2.11": {f"n{number}": f"{long}x{number} = [{number}]\n" for number in range(1_200)}})
    monkeypatch.setattr("curate.sources.rows.BATCH_ROWS", 20)
    source = open_source("lemur-db")
    source.inputs()  # fetched and unpacked before what is measured
    tracemalloc.start()
    try:
        corpus = ReferenceCorpus(source, jobs=1)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (corpus.name, len(corpus.codes)) == ("lemur-db@2.2.11", 1_200)
    assert most < 25e6 < 1_200 * len(long)


def test_wrong_version(server: Any, tmp_path: Path) -> None:
    put(server, tmp_path, {"2.2.9": {"a": "x"}, "2.2.11": {"a": "x"}, "2.2.10": {"a": "x"}})
    assert error_of("lemur-db@2.3") == "lemur-db@2.3: no such version; NN-Dataset/LEMUR_DB has 2.2.9, 2.2.10, 2.2.11"
    for spec in ("lemur-db@", "lemur-db@newest"):
        assert error_of(spec).startswith(f"{spec}: not a version; for example lemur-db@2.2.11")


def test_without_a_network(server: Any, tmp_path: Path) -> None:
    put(server, tmp_path, {"2.2.11": {"a": "x = 1"}})
    for server.faults in ({"model_info": "drop"}, {"model_info": 503}, {"hf_hub_download": "drop"}):
        with pytest.raises(RetryableError, match="run the same command again: finished downloads are kept"):
            names_of("lemur-db")
    server.faults = {}
    assert names_of("lemur-db") == ["a"]


def test_no_repository_and_no_file(server: Any, tmp_path: Path) -> None:
    assert error_of("lemur-db").startswith("NN-Dataset/LEMUR_DB: no such repository, or it is private")
    server.make(REPOSITORY)
    assert error_of("lemur-db").startswith(
        "lemur-db: no such version; NN-Dataset/LEMUR_DB has no file ab.nn.zst-VERSION"
    )


def test_other_content_than_stated_is_refused(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(server, tmp_path, {"2.2.11": {"a": "x = 1"}})
    facts = {"oid": "0" * 64, "size": 5, "pointerSize": 100}
    monkeypatch.setattr(File, "entry", lambda self, path: RepoFile(path=path, size=5, oid="", lfs=facts))
    assert "not those that the Hub states (" in error_of("lemur-db")
    assert not list(cache_folder("lemur-db").iterdir())


def test_curation_names_version_file_and_licence(server: Any, tmp_path: Path) -> None:
    codes = {"ga-1": "class Net(Module):\n    x = 1\n", "GAN": "class Net(Module):\n    y = [2, 3]\n"}
    put(server, tmp_path, {"2.2.11": codes}, license="mit")
    curate(open_source("lemur-db"), tmp_path / "out", CurateOptions(graph="off"), jobs=1)
    manifest = read_manifest(tmp_path / "out")
    assert manifest.parameters["source"] == "lemur-db@2.2.11"
    assert [item.name for item in manifest.inputs] == ["ab.nn.zst-2.2.11"]
    assert manifest.details["license"] == "MIT"
    assert manifest.details["sketch"] == {"scheme": SCHEME, "permutations": 256}
    (features,) = (path.name for path in cache_folder("features").iterdir())
    assert f"-{SCHEME}-" in features
    local = next(tmp_path.glob("made-*/ab.nn.db"))
    curate(open_source(str(local)), tmp_path / "local", CurateOptions(graph="off"), jobs=1)
    tables = ("decisions.parquet", "data/stats/train-00000-of-00001.parquet")
    assert all((tmp_path / "out" / name).read_bytes() == (tmp_path / "local" / name).read_bytes() for name in tables)
    assert json.loads((tmp_path / "local" / "manifest.json").read_text())["parameters"]["source"] == "ab.nn.db"
    assert sqlite3.connect(local).execute("SELECT COUNT(*) FROM stat").fetchone() == (2,)
