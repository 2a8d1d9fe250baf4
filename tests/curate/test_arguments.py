"""What networks are run with whose records state no task, and whose codes import nothing."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.compute.runs import NAMESPACES, PRM, complete, imports_nothing, place_in
from curate.interface import Snapshot, curate
from curate.model.options import CurateOptions
from lemur_core.files.errors import UsageError
from tests.builders.suites import read_files, table

IMPORTS = "import torch\nfrom torch import nn\n"
TEXTS = read_files(__file__, "arguments.md")
NET = TEXTS["NET"]
#: The same computation in words of its own, so that only its graph tells.
TWIN = TEXTS["TWIN"]
OTHER = TEXTS["OTHER"]


def read_records(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    files = sorted(Path(snapshot).glob("data/records/*.parquet"))
    return {row["nn"]: row for row in pq.read_table(files).to_pylist()}


def write_folder(folder: Path, codes: dict[str, str]) -> Path:
    folder.mkdir()
    for name, code in codes.items():
        (folder / f"{name}.py").write_text(code)
    return folder


def test_a_folder_of_files_is_traced_as_the_same_codes_in_a_table(tmp_path: Path) -> None:
    codes = {"a": IMPORTS + NET, "b": IMPORTS + TWIN}
    folder = write_folder(tmp_path / "nets", codes)
    table = tmp_path / "table.jsonl"
    benchmark = {"task": "img-classification", "dataset": "cifar-10", "prm": PRM}
    lines = [json.dumps({"nn": name, "nn_code": code, **benchmark}) for name, code in codes.items()]
    table.write_text("\n".join(lines))
    first, second = (curate(source, out=tmp_path / f"out-{source.suffix}", jobs=1) for source in (folder, table))
    assert first.decisions == second.decisions
    assert [(row.nn, row.kept, row.stage) for row in first.decisions][:2] in (
        [("a", True, None), ("b", False, "graph")],
        [("a", False, "graph"), ("b", True, None)],
    )
    columns = ("graph", "runs", "split")
    shown = [{nn: [row[name] for name in columns] for nn, row in read_records(one).items()} for one in (first, second)]
    assert shown[0] == shown[1]
    assert all(row["graph"] and row["task"] is None for row in read_records(first).values())
    note = "1 kept network without a stated task, data set or hyperparameters, traced with the usual ones:"
    assert [text.partition(note)[0] for text in first.manifest.details["notes"]] == [""]
    assert second.manifest.details["notes"] == []


def test_options_say_what_the_files_are(tmp_path: Path) -> None:
    code = IMPORTS + NET.replace(".mean((2, 3))", "").replace(
        "super()", "assert prm == {'lr': 0.5, 'batch': 3}\n        super()"
    )
    folder = write_folder(tmp_path / "nets", {"a": code})
    options = CurateOptions(task=("img-segmentation",), dataset=("coco",), prm='{"lr": 0.5}')
    [record] = read_records(curate(folder, out=tmp_path / "out", options=options, jobs=1)).values()
    assert (record["task"], record["dataset"], record["prm"]) == ("img-segmentation", "coco", '{"lr": 0.5}')
    assert record["graph"]


def test_codes_without_imports_run_in_the_namespace_on_request(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "nets", {"bare": NET.lstrip(), "own": IMPORTS + OTHER})
    plain = curate(folder, out=tmp_path / "plain", jobs=1)
    assert read_records(plain)["bare"]["runs_error"].startswith("import_failed: NameError: name 'nn' is not defined")
    notes = plain.manifest.details["notes"]
    assert notes[1:] == ["1 kept code that imports nothing does not run; --namespace torch runs such codes"]
    placed = curate(folder, out=tmp_path / "placed", options=CurateOptions(namespace="torch", check_runs=True), jobs=1)
    records = read_records(placed)
    assert records["bare"]["runs"] is True
    assert records["bare"]["graph"]
    assert records["bare"]["nn_code"] == NET.lstrip()  # the record is as it was
    assert records["own"]["graph"] == read_records(plain)["own"]["graph"]
    assert placed.manifest.parameters["namespace"] == "torch"
    line = f"1 kept code without imports, run below the line of --namespace torch: {NAMESPACES['torch']}"
    assert placed.manifest.details["notes"][1:] == [line]


def test_the_documented_line() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
    assert NAMESPACES["torch"] in text


def test_a_namespace_that_nothing_is_run_in() -> None:
    with pytest.raises(UsageError, match="--namespace: nothing is run"):
        CurateOptions(namespace="torch", graph="off")


@table(__file__, "arguments.md", "Imports nothing", globals())
def test_imports_nothing(code: str, bare: bool) -> None:
    assert imports_nothing(code) == bare
    assert place_in(code, "torch") == (f"{NAMESPACES['torch']}\n{code}" if bare else code)
    assert place_in(code, None) == code


@table(__file__, "arguments.md", "Complete", globals())
def test_complete(stated: tuple[Any, ...], code: str, complete_record: tuple[Any, ...]) -> None:
    assert complete(dict(zip(("task", "dataset", "prm"), stated, strict=True)), code) == complete_record
