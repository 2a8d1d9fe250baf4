"""`lemur novel` and `Snapshot.novelty`: codes beside a snapshot and an extraction, by text, structure and what they compute."""

import gc
import json
import pickle
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate import Snapshot
from curate.compute.graphs import NetworkTracer
from curate.folder.novelty import describe_novelty, novel
from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from lemur_core.files.errors import NoSandboxError, UsageError, UserError
from manifests.records import GraphRow, arrow_schema
from tests.builders import extractions
from tests.builders.suites import read_files
from tests.curate.conftest import MemorySource, network

TEXTS = read_files(__file__, "novel.md")

ALL = tuple(range(12))
Command = Callable[..., subprocess.CompletedProcess[str]]


def snapshot_of(folder: Path, codes: dict[str, str], **options: Any) -> Snapshot:
    benchmark = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1}
    prm = json.dumps({"dropout": 0.35, "transform": "norm_32"})
    rows = [
        {"nn": name, "nn_code": code, **benchmark, "accuracy": 0.9 - place / 10, "prm": prm}
        for place, (name, code) in enumerate(codes.items())
    ]
    curate(MemorySource(rows), folder / "snapshot", CurateOptions(**options), jobs=1)
    return Snapshot(folder / "snapshot")


@pytest.fixture(scope="module")
def codes() -> dict[str, str]:
    return {"base": network(ALL), "copy": network((*ALL, 0)), "other": network((6, 8, 4))}


@pytest.fixture(scope="module")
def snapshot(codes: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return snapshot_of(tmp_path_factory.mktemp("novel"), codes, graph="off")


def find(code: str, snapshot: Snapshot, **options: Any) -> dict[str, Any]:
    """What is found of one code, by its text."""
    (told,) = novel({"it": code}, [snapshot.folder], **options)["files"]
    return dict(told)


def test_the_same_code_is_known(snapshot: Snapshot, codes: dict[str, str], tmp_path: Path) -> None:
    told = find(codes["base"], snapshot)
    assert told["verdict"] == "known"
    nearest = told["nearest"][0]
    assert (nearest["folder"], nearest["name"], nearest["stands_for_it"]) == (str(snapshot.folder), "base", None)
    assert (nearest["lexical"], nearest["structural"], nearest["graph"], nearest["agreement"]) == (1.0, 1.0, None, None)
    assert nearest["known"] == ("exact", "lexical", "structural")
    novelty = snapshot.novelty(codes["base"])
    assert (novelty.known, novelty.reason) == (True, "the same code, near by text, near by structure: base")
    for one in (novelty.text, novelty.structure):
        assert one is not None
        assert (one.name, one.similarity, one.id) == ("base", 1.0, novelty.id)
    assert (novelty.graph, novelty.behavior) == (None, None)
    assert novelty.error == told["error"] == "not_traced: there are no graphs to compare with"
    (tmp_path / "base.py").write_text(codes["base"])
    (of_file,) = novel([tmp_path / "base.py"], [snapshot.folder])["files"]
    assert of_file == told | {"file": str(tmp_path / "base.py")}, "a text is compared as its file is"
    for code in (*codes.values(), "import torch\n"):
        assert [asdict(near) for near in snapshot.novelty(code).nearest] == find(code, snapshot)["nearest"]


def test_a_near_text_is_known(snapshot: Snapshot, codes: dict[str, str], tmp_path: Path) -> None:
    told = find(network(ALL, name="Other", comment="mine"), snapshot)
    nearest = told["nearest"][0]
    assert (told["verdict"], nearest["name"]) == ("known", "base")
    assert (nearest["known"][0], nearest["lexical"] >= 0.9) == ("lexical", True)
    options = {"lexical_threshold": 1.0, "structural_threshold": 1.0, "graph": "off"}
    strict = find(codes["copy"], snapshot_of(tmp_path, {"base": codes["base"]}, **options))
    assert strict["verdict"] == "novel", "thresholds are those of the snapshot"
    assert strict["nearest"][0]["lexical"] >= 0.9


def test_a_removed_code_names_what_stands_for_it(snapshot: Snapshot, codes: dict[str, str]) -> None:
    assert [*snapshot.decisions[~snapshot.decisions.kept].nn] == ["copy"]
    novelty = snapshot.novelty(codes["copy"])
    assert novelty.reason == "the same code, near by text, near by structure: copy"
    assert novelty.nearest[0].stands_for_it == "base"
    lines = describe_novelty(novel({"it": codes["copy"]}, [snapshot.folder]))
    assert any(line.endswith(f"copy ({snapshot.folder}, removed for base)") for line in lines)


def test_another_network_is_novel(snapshot: Snapshot) -> None:
    found = novel({"it": network((9, 3, 1, 10))}, [snapshot.folder])
    assert not found["known"]
    (told,) = found["files"]
    assert told["verdict"] == "novel"
    assert {one["name"] for one in told["nearest"]} == {"base", "other"}
    assert all(not one["known"] for one in told["nearest"])
    assert describe_novelty(found)[0].startswith("novel  it: nearest is ")
    note = f"note: {snapshot.folder}: holds no graphs; its networks are compared by text and structure alone; "
    assert describe_novelty(found)[-1].startswith(note)
    new = snapshot.novelty(network((9, 3, 1, 10)), graph=False)
    assert (new.verdict, new.error) == ("novel", "not_traced: graph=False")
    assert new.text is not None
    assert (new.reason, 0 < new.text.similarity < 0.9) == (f"nearest is {new.nearest[0].name}", True)


def test_a_block_is_known_beside_its_extraction(tmp_path: Path, snapshot: Snapshot) -> None:
    sources = [extractions.source(tmp_path, "alpha@1.0")]
    extractions.write(tmp_path / "blocks", extractions.results(sources), sources)
    rows = pq.read_table(tmp_path / "blocks" / "blocks.parquet", columns=["block", "code"]).to_pylist()
    block = next(row for row in rows if row["code"] is not None)
    found = novel({"it": block["code"]}, [snapshot.folder, tmp_path / "blocks"])
    (told,), (note,) = found["files"], found["notes"]
    assert (told["verdict"], str(snapshot.folder) in note) == ("known", True), "blocks have no graphs"
    assert [told["nearest"][0][name] for name in ("name", "folder")] == [block["block"], str(tmp_path / "blocks")]


def test_what_cannot_be_compared_is_one_line(snapshot: Snapshot, tmp_path: Path) -> None:
    good, broken = tmp_path / "network.py", tmp_path / "broken.py"
    good.write_text("import torch\n")
    broken.write_text("def broken(:\n")
    (tmp_path / "bytes.py").write_bytes(b"\xff")
    for path, said in (
        (tmp_path / "none.py", "none.py: cannot be read: No such file or directory; give a Python file"),
        (tmp_path / "bytes.py", "bytes.py: cannot be read: invalid UTF-8 at byte 0; give a Python file"),
        (broken, "broken.py: not Python for this interpreter: line 1: invalid syntax; nothing was compared"),
    ):
        with pytest.raises(UserError) as caught:
            novel([good, path], [snapshot.folder])
        assert str(caught.value) == f"{path.parent}/{said}"
    with pytest.raises(UserError, match=r"no manifest\.json; not a finished lemur folder"):
        novel([good], [tmp_path])
    with pytest.raises(UsageError, match="--task dreams: not known; one of img-classification, "):
        novel([good], [snapshot.folder], task="dreams")
    with pytest.raises(UsageError, match="--prm \\[1\\]: must be a JSON object"):
        novel([good], [snapshot.folder], prm="[1]")
    with pytest.raises(UserError, match=r"^network.py: not Python for this interpreter: line 1: "):
        snapshot.novelty("def (")
    with pytest.raises(UsageError, match=r"^task dreams: not known; one of img-classification, "):
        snapshot.novelty("x = 1", task="dreams")
    assert pickle.loads(pickle.dumps(snapshot)).novelty("x = 1").verdict == "novel"


def test_exit_codes(lemur_here: Command, snapshot: Snapshot, tmp_path: Path, codes: dict[str, str]) -> None:
    for name, code in (("known", codes["base"]), ("novel", "import torch\n")):
        (tmp_path / f"{name}.py").write_text(code)

    def run(*names: str) -> subprocess.CompletedProcess[str]:
        return lemur_here(
            "novel", *(f"{name}.py" for name in names), "--against", snapshot.folder, "--json", cwd=tmp_path
        )

    assert run("novel").returncode == 0
    both = run("novel", "known")
    assert both.returncode == 3
    assert [told["verdict"] for told in json.loads(both.stdout)["files"]] == ["novel", "known"]


def test_without_a_sandbox_it_says_so(
    snapshot: Snapshot, codes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NoSandboxError("no sandbox here")

    monkeypatch.setattr("curate.folder.novelty.NetworkTracer.run", refuse)
    shutil.copytree(snapshot.folder, tmp_path / "traced")
    pq.write_table(arrow_schema(GraphRow).empty_table(), tmp_path / "traced" / "graphs.parquet")
    found = novel({"it": codes["other"]}, [tmp_path / "traced"])
    assert (found["notes"], found["files"][0]["verdict"]) == (["no file was run: no sandbox here"], "known")
    assert "; judged by text and structure alone: not_traced: no sandbox" in describe_novelty(found)[0]


def test_a_snapshot_that_is_dropped_closes_its_sandbox(
    snapshot: Snapshot, codes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = Event(), NetworkTracer.__exit__

    def leave(*given: Any) -> None:
        close(*given)
        closed.set()

    monkeypatch.setattr(NetworkTracer, "__exit__", leave)
    shutil.copytree(snapshot.folder, tmp_path / "traced")
    pq.write_table(arrow_schema(GraphRow).empty_table(), tmp_path / "traced" / "graphs.parquet")
    assert Snapshot(tmp_path / "traced").novelty(codes["other"]).known
    gc.collect()
    assert closed.wait(60)


def test_threads_get_the_answers_of_one(snapshot: Snapshot) -> None:
    asked = [network(tuple(range(number, 12))) for number in range(10)] * 4
    alone = [Snapshot(snapshot).novelty(code) for code in asked[:10]] * 4
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(Snapshot(snapshot).novelty, asked)) == alone


@pytest.mark.slow
def test_what_it_computes_tells(tmp_path: Path) -> None:
    snapshot, rewritten = snapshot_of(tmp_path, {"plain": TEXTS["PLAIN"]}, graph="survivors"), TEXTS["REWRITTEN"]
    for code, prm, expected in (
        (rewritten, None, ("known", "same", ("graph",))),  # with its prm
        (rewritten, '{"dropout": 0.0}', ("novel", "different", ())),  # it drops nothing
        (rewritten.replace("WIDTH = 8", "WIDTH = 6"), None, ("novel", "widths", ())),
    ):
        told = find(code, snapshot, prm=prm)
        nearest = told["nearest"][0]
        assert (told["verdict"], nearest["agreement"], nearest["known"]) == expected
        assert nearest["lexical"] < 0.2
        assert nearest["graph"] == 1.0, "in eval mode, whatever the widths"
    found = novel({"it": rewritten.replace("self.first)", "self.missing)")}, [snapshot.folder])
    assert found["files"][0]["graph"] is None
    assert "; judged by text and structure alone: forward_failed: AttributeError: " in describe_novelty(found)[0]

    path = snapshot.folder / "graphs.parquet"
    table = pq.read_table(path)
    made = table.set_column(table.schema.get_field_index("torch"), "torch", pa.array(["1.0"] * len(table)))
    pq.write_table(made, path)
    with pytest.raises(UserError, match=r"its graphs are form 2 of torch 1\.0, here is form 2 of torch "):
        find(rewritten, snapshot)


@pytest.mark.slow
def test_graphs_and_numbers_are_compared_on_one_server(tmp_path: Path) -> None:
    plain, rewritten = TEXTS["PLAIN"], TEXTS["REWRITTEN"]
    # A record beside which no other has parameters of its sizes has no numbers in its snapshot: it is measured here.
    (tmp_path / "alone").mkdir()
    alone = snapshot_of(tmp_path / "alone", {"plain": plain}, graph="survivors")
    assert [record.behavior for record in alone.records.itertuples()] == [None]
    (near, *_) = alone.novelty(rewritten).nearest
    assert (near.name, near.known, near.equal_numbers) == ("plain", ("graph",), True)
    # Two of one computation: both are measured, and the numbers of the kept one are in the snapshot.
    snapshot = snapshot_of(tmp_path, {"plain": plain, "again": rewritten}, graph="survivors")
    (kept,) = snapshot.records.itertuples()
    assert kept.behavior is not None
    for text in (f"# again\n{plain}", f"# again\n{rewritten}"):  # one was removed for its graph; its text leads to it
        assert {snapshot.novelty(text, graph=False).known, snapshot.novelty(text, prm={"dropout": 0.0}).known} == {True}
    other = rewritten.replace("max_pool2d(found, 2)", "max_pool2d(found, 2, 2)") + "\n# it pools likewise\n"
    wider = rewritten.replace("WIDTH = 8", "WIDTH = 6")
    asked = [other, wider, wider.replace(".relu()", ".tanh()")] * 2
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(snapshot.novelty, asked))
    assert results[:3] == results[3:]
    same, widths, different = results[:3]
    assert same.known
    assert same.graph is not None
    assert same.graph.similarity == 1.0
    assert (widths.verdict, widths.nearest[0].agreement, widths.behavior) == ("novel", "widths", None)
    assert (different.verdict, different.nearest[0].agreement) == ("novel", "different")
    assert [result.error for result in results] == [None] * 6
