"""`lemur novel`: files beside a snapshot and an extraction, by text, by structure and by what they compute."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.model.options import CurateOptions
from curate.published.novel import novel
from curate.run.pipeline import curate
from curate.sources import open_source
from extract.model.results import Result, code_columns
from extract.proofs.equivalence import BlockWithOriginal
from extract.proofs.visit import RunnableBlock, visit_all
from extract.resolve.index import FactsIndex
from lemur_core.files.errors import NoSandboxError, UsageError, UserError
from manifests.records import GraphRow, arrow_schema
from tests.builders import extractions
from tests.builders.suites import read_files

TEXTS = read_files(__file__, "novel.md")

ALL = tuple(range(12))
Command = Callable[..., subprocess.CompletedProcess[str]]


def snapshot_of(folder: Path, codes: dict[str, str], **options: Any) -> Path:
    """A snapshot of these networks by name."""
    benchmark = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1}
    prm = json.dumps({"dropout": 0.35, "transform": "norm_32"})
    rows = [
        {"nn": name, "nn_code": code, **benchmark, "accuracy": 0.9 - place / 10, "prm": prm}
        for place, (name, code) in enumerate(codes.items())
    ]
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    curate(open_source(str(source)), folder / "snapshot", CurateOptions(**options), jobs=1)
    return folder / "snapshot"


@pytest.fixture(scope="module")
def codes(network: Callable[..., str]) -> dict[str, str]:
    return {"base": network(ALL), "copy": network((*ALL, 0)), "other": network((6, 8, 4))}


@pytest.fixture(scope="module")
def snapshot(codes: dict[str, str], warm: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    warm(codes.values())
    return snapshot_of(tmp_path_factory.mktemp("novel"), codes, graph="off")


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    def write(code: str) -> Path:
        path = tmp_path / "network.py"
        path.write_text(code)
        return path

    return write


def test_the_same_code_is_known(snapshot: Path, codes: dict[str, str], file: Callable[[str], Path]) -> None:
    (told,) = novel([file(codes["base"])], [snapshot]).facts["files"]
    assert told["verdict"] == "known"
    nearest = told["nearest"][0]
    assert (nearest["folder"], nearest["name"], nearest["stands_for_it"]) == (str(snapshot), "base", None)
    assert (nearest["lexical"], nearest["structural"], nearest["graph"], nearest["agreement"]) == (1.0, 1.0, None, None)
    assert nearest["known"] == ("exact", "lexical", "structural")
    assert told["error"].startswith("not_traced: ")


def test_a_text_is_compared_as_its_file_is(snapshot: Path, codes: dict[str, str], file: Callable[[str], Path]) -> None:
    by_file, by_text = novel([file(codes["copy"])], [snapshot]), novel({"copy": codes["copy"]}, [snapshot])
    assert by_text.nearest == by_file.nearest
    assert by_text.facts["files"][0] == by_file.facts["files"][0] | {"file": "copy"}
    with pytest.raises(UserError, match=r"^copy: "):
        novel({"copy": "def ("}, [snapshot])


def test_a_near_text_is_known(snapshot: Path, file: Callable[[str], Path], network: Callable[..., str]) -> None:
    (told,) = novel([file(network(ALL, name="Other", comment="mine"))], [snapshot]).facts["files"]
    nearest = told["nearest"][0]
    assert (told["verdict"], nearest["name"]) == ("known", "base")
    assert nearest["known"][0] == "lexical"
    assert nearest["lexical"] >= 0.9


def test_a_removed_code_names_what_stands_for_it(
    snapshot: Path, codes: dict[str, str], file: Callable[[str], Path]
) -> None:
    found = novel([file(codes["copy"])], [snapshot])
    names = {one["name"]: one for one in found.facts["files"][0]["nearest"]}
    assert names["copy"]["stands_for_it"] == "base"
    assert names["copy"]["known"][0] == "exact"
    assert any(line.endswith(f"copy ({snapshot}, removed for base)") for line in found.lines)


def test_another_network_is_novel(snapshot: Path, file: Callable[[str], Path], network: Callable[..., str]) -> None:
    found = novel([file(network((9, 3, 1, 10)))], [snapshot])
    assert not found.is_known
    (told,) = found.facts["files"]
    assert told["verdict"] == "novel"
    assert {one["name"] for one in told["nearest"]} == {"base", "other"}
    assert all(not one["known"] for one in told["nearest"])
    assert found.lines[0].startswith(f"novel  {told['file']}: nearest is ")
    assert found.lines[-1] == (
        f"note: {snapshot}: holds no graphs; its networks are compared by text and structure alone"
    )


def test_thresholds_are_those_of_the_snapshot(
    codes: dict[str, str], tmp_path: Path, file: Callable[[str], Path], network: Callable[..., str]
) -> None:
    options = {"lexical_threshold": 1.0, "structural_threshold": 1.0, "graph": "off"}
    strict = snapshot_of(tmp_path, {"base": codes["base"]}, **options)
    found = novel([file(network((*ALL, 0)))], [strict])
    assert not found.is_known
    assert found.facts["files"][0]["nearest"][0]["lexical"] >= 0.9


def test_a_block_is_known_beside_its_extraction(
    tmp_path: Path, file: Callable[[str], Path], snapshot: Path, codes: dict[str, str]
) -> None:
    sources = [extractions.source(tmp_path, "alpha@1.0")]
    extractions.write(tmp_path / "blocks", extractions.results(sources), sources)
    rows = pq.read_table(tmp_path / "blocks" / "blocks.parquet", columns=["block", "code"]).to_pylist()
    block = next(row for row in rows if row["code"] is not None)
    (told,) = novel([file(block["code"])], [snapshot, tmp_path / "blocks"]).facts["files"]
    assert told["verdict"] == "known"
    assert told["nearest"][0]["name"] == block["block"]
    assert told["nearest"][0]["folder"] == str(tmp_path / "blocks")


def test_what_cannot_be_compared_is_one_line(snapshot: Path, file: Callable[[str], Path], tmp_path: Path) -> None:
    good, broken = file("import torch\n"), tmp_path / "broken.py"
    broken.write_text("def broken(:\n")
    (tmp_path / "bytes.py").write_bytes(b"\xff")
    for path, said in (
        (tmp_path / "none.py", "none.py: cannot be read: No such file or directory; give a Python file"),
        (tmp_path / "bytes.py", "bytes.py: cannot be read: invalid UTF-8 at byte 0; give a Python file"),
        (broken, "broken.py: not Python: line 1: invalid syntax; nothing was compared"),
    ):
        with pytest.raises(UserError) as caught:
            novel([good, path], [snapshot])
        assert str(caught.value) == f"{path.parent}/{said}"
    with pytest.raises(UserError, match=r"no manifest\.json; not a finished lemur folder"):
        novel([good], [tmp_path])
    with pytest.raises(UsageError, match="--task dreams: not known; one of img-classification, "):
        novel([good], [snapshot], task="dreams")
    with pytest.raises(UsageError, match="--prm \\[1\\]: must be a JSON object"):
        novel([good], [snapshot], prm="[1]")


def test_exit_codes(lemur_here: Command, snapshot: Path, tmp_path: Path, codes: dict[str, str]) -> None:
    for name, code in (("known", codes["base"]), ("novel", "import torch\n"), ("broken", "def broken(:\n")):
        (tmp_path / f"{name}.py").write_text(code)

    def run(*names: str) -> subprocess.CompletedProcess[str]:
        return lemur_here("novel", *(f"{name}.py" for name in names), "--against", snapshot, "--json", cwd=tmp_path)

    assert run("novel").returncode == 0
    both = run("novel", "known")
    assert both.returncode == 3
    assert [told["verdict"] for told in json.loads(both.stdout)["files"]] == ["novel", "known"]
    failed = run("known", "broken")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("lemur: broken.py: not Python")


def test_without_a_sandbox_it_says_so(
    snapshot: Path, codes: dict[str, str], file: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NoSandboxError("no sandbox here")

    monkeypatch.setattr("curate.published.novel.NetworkTracer.run", refuse)
    shutil.copytree(snapshot, tmp_path / "traced")
    pq.write_table(arrow_schema(GraphRow).empty_table(), tmp_path / "traced" / "graphs.parquet")
    found = novel([file(codes["other"])], [tmp_path / "traced"])
    assert found.facts["notes"] == ["no file was run: no sandbox here"]
    assert found.facts["files"][0]["verdict"] == "known"
    assert "; judged by text and structure alone: not_traced: no sandbox" in found.lines[0]


# --- what they compute --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_it_computes_tells(tmp_path: Path, file: Callable[[str], Path]) -> None:
    snapshot = snapshot_of(tmp_path, {"plain": TEXTS["PLAIN"]}, graph="survivors")
    (told,) = novel([file(TEXTS["REWRITTEN"])], [snapshot]).facts["files"]
    nearest = told["nearest"][0]
    assert nearest["lexical"] < 0.2
    assert (told["verdict"], nearest["agreement"], nearest["known"]) == ("known", "same", ("graph",))  # with its prm

    (told,) = novel([file(TEXTS["REWRITTEN"])], [snapshot], prm='{"dropout": 0.0}').facts["files"]
    assert (told["verdict"], told["nearest"][0]["agreement"]) == ("novel", "different")  # it drops nothing
    assert told["nearest"][0]["graph"] == 1.0  # in eval mode

    (told,) = novel([file(TEXTS["REWRITTEN"].replace("WIDTH = 8", "WIDTH = 6"))], [snapshot]).facts["files"]
    assert (told["verdict"], told["nearest"][0]["agreement"]) == ("novel", "widths")

    found = novel([file(TEXTS["REWRITTEN"].replace("self.first)", "self.missing)"))], [snapshot])
    assert found.facts["files"][0]["graph"] is None
    assert "; judged by text and structure alone: forward_failed: AttributeError: " in found.lines[0]

    path = snapshot / "graphs.parquet"
    table = pq.read_table(path)
    made = table.set_column(table.schema.get_field_index("torch"), "torch", pa.array(["1.0"] * len(table)))
    pq.write_table(made, path)
    with pytest.raises(UserError, match=r"its graphs are form 2 of torch 1\.0, here is form 2 of torch "):
        novel([file(TEXTS["REWRITTEN"])], [snapshot])


@pytest.mark.slow
def test_a_block_is_found_in_a_module_of_the_network(tmp_path: Path, file: Callable[[str], Path]) -> None:
    arguments = {
        "init": {"args": ["64"], "kwargs": {"reduced": "8"}},
        "forward": {"args": ["torch.randn(2, 64, 6, 6)"], "kwargs": {}},
    }
    with FactsIndex(tmp_path / "facts.sqlite") as index:
        (traced,) = visit_all(
            [RunnableBlock(BlockWithOriginal("gate", "Gate", TEXTS["GATE"], "", (), (), arguments))], index, jobs=1
        )
    assert traced.graphs is not None, traced.no_graphs
    of = extractions.source(tmp_path, "alpha@1.0")
    columns = {"graph": traced.graphs["graph"], "graph_widths": traced.graphs["graph_widths"]}
    columns |= code_columns(TEXTS["GATE"]) | {"error_kind": None, "error": None, "arguments": json.dumps(arguments)}
    row = extractions.block(of, "Gate", "backward", observed=json.dumps({"cases": []}), **columns)
    extractions.write(tmp_path / "blocks", [Result(row, (), traced.graphs)], [of], level="backward")

    found = novel([file(TEXTS["GATED"])], [tmp_path / "blocks"])
    (told,) = found.facts["files"]
    (nearest,) = told["nearest"]
    assert (told["verdict"], nearest["agreement"], nearest["part"], nearest["graph"]) == (
        "novel",
        "widths",
        "body",
        1.0,
    )
    assert found.lines[2].endswith("by the file's body)")
    assert found.facts["notes"] == []

    (told,) = novel([file(TEXTS["GATED"].replace(".sigmoid()", ".tanh()"))], [tmp_path / "blocks"]).facts["files"]
    assert (told["nearest"][0]["agreement"], told["nearest"][0]["part"]) == ("different", "body")
    assert 0.3 < told["nearest"][0]["graph"] < 1

    (told,) = novel([file(TEXTS["GATE"])], [tmp_path / "blocks"]).facts["files"]
    assert (told["verdict"], told["nearest"][0]["graph"]) == ("known", None)
    assert told["error"].startswith("no_net: ")

    specs = tmp_path / "blocks" / "specs.jsonl"
    specs.write_text(specs.read_text().replace('"form": 2', '"form": 0'))
    with pytest.raises(
        UserError, match=r"alpha\.blocks\.Gate: form 0 of torch .*; extract it again, or use that torch"
    ):
        novel([file(TEXTS["GATED"])], [tmp_path / "blocks"])
