"""Blocks in KernelBench's form, and what every export promises: whole or not at all, and no code that may not leave."""

import json
from pathlib import Path
from typing import Any, get_args

import datasets
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from extract.model.results import Result, code_columns
from lemur.export import ExportForm
from lemur.export.command import export_folder
from lemur.export.kernelbench import ProblemText, build_problem
from lemur_core.files.errors import UserError
from manifests.folders.manifest import read_manifest
from manifests.records import Block
from tests.builders import extractions
from tests.builders.suites import read_files

Row = dict[str, Any]
CODES = read_files(__file__, "export.md")


def block(of: Any, name: str, **changes: Any) -> Block:
    """A row of a block that runs. Args: changes: its columns; `init`, `forward` and `cases` in short."""
    code = extractions.code_of(f"{of.name}::x.{name}", of.license, CODES[name])
    calls = {key: changes.pop(key, {}) for key in ("init", "forward")}
    arguments = {key: {"args": [], "kwargs": {}, **call} for key, call in calls.items()}
    cases = [{"inputs": inputs, "outputs": outputs} for inputs, outputs in changes.pop("cases")]
    observed = {"parameters": 0, "trainable": 0, "buffers": 0, "layers": {}, "cases": cases}
    facts = {"arguments": json.dumps(arguments), "observed": json.dumps(observed), "error_kind": None, "error": None}
    return extractions.block(of, name, changes.pop("level", "forward"), **{**facts, **code_columns(code), **changes})


def scale(of: Any, **changes: Any) -> Block:
    shapes = ("float32 2x8x4x4", "float32 3x8x6x4")
    stated: Row = {
        "init": {"args": ["8"], "kwargs": {"act": "nn.ReLU"}},
        "forward": {"kwargs": {"x": "torch.randn((2, 8, 4, 4))", "places": "torch.randint(0, 4, (2, 3))"}},
        "cases": [({"x": shape, "places": "int64 2x3"}, [shape]) for shape in shapes],
    }
    return block(of, "Scale", **{**stated, **changes})


def load(code: str) -> Row:
    names: Row = {}
    exec(code, names)
    return names


def test_a_problem_runs_as_the_block_does(tmp_path: Path) -> None:
    row = scale(extractions.source(tmp_path))
    problem = build_problem(row, ("channels",))
    assert isinstance(problem, ProblemText)
    code, cases = problem.render(factors=(1.0, 16.0), layouts=2)
    assert code.startswith(row.code or "-")
    names = load(code)
    inputs = [names["get_inputs"](case) for case in range(cases)]
    assert [tuple(x.shape) for x, _ in inputs] == [(2, 8, 4, 4), (3, 8, 6, 4)] * 4
    assert [x.is_contiguous(memory_format=torch.channels_last) for x, _ in inputs] == [False] * 4 + [True] * 4
    assert [bool(x.abs().max() > 8) for x, _ in inputs] == [False, False, True, True] * 2
    assert all(places.max() < 4 for _, places in inputs), "indices stay what they are"
    assert names["get_init_inputs"]() == [8, torch.nn.ReLU]
    torch.manual_seed(0)
    model = names["Model"](*names["get_init_inputs"]())
    torch.manual_seed(0)
    original = names["Scale"](8, act=torch.nn.ReLU).eval()
    for x, places in inputs:
        # KernelBench makes all inputs floats; dropout would draw in train mode.
        assert torch.equal(model(x, places.float()), original(x, places))


REFUSED: dict[str, tuple[Row, str]] = {
    "level": ({"level": "constructed"}, "does not run forward"),
    "call": ({"arguments": None}, "no call is stated"),
    "outputs": ({"cases": [({"x": "float32 2"}, ["float32 2", "float32 2"])]}, "does not return one tensor"),
    "star": ({"init": {"args": ["*[8]"]}}, "is called with unpacked arguments"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_such_form(tmp_path: Path, case: str) -> None:
    changes, reason = REFUSED[case]
    assert build_problem(scale(extractions.source(tmp_path), **changes)) == reason
    taken = block(extractions.source(tmp_path), "Taken", cases=[({}, ["float32 2"])])
    assert build_problem(taken) == "its file defines Model"


def test_a_trivial_answer_does_not_pass(tmp_path: Path) -> None:
    of = extractions.source(tmp_path, "alpha@1.0")
    names = ("Small", "Same", "Unseeded", "Seldom", "Constant", "Narrow")
    cases = [({"x": f"float32 {n}x4"}, [f"float32 {n}x1024"]) for n in (2, 3)]
    call = {"forward": {"kwargs": {"x": "torch.randn((2, 4))"}}, "cases": cases}
    results = [Result(row, ((row.source, row.path),)) for row in (block(of, name, **call) for name in names)]
    extractions.write(tmp_path / "out", results, [of])
    export_folder(tmp_path / "out", "kernelbench", tmp_path / "problems")
    rows = pq.read_table(tmp_path / "problems" / "data" / "problems").to_pylist()
    found = {row["block"].rpartition(".")[2]: row for row in rows}
    assert found["Same"]["hackable"] == "within 0.01: the input"
    assert found["Seldom"]["hackable"] == "draws at random"
    assert found["Unseeded"]["hackable"] == "parameters are not those of its seed"
    assert "another output" in found["Constant"]["hackable"]
    assert found["Narrow"]["hackable"] == "one range of values alone"
    assert found["Small"]["hackable"] is None
    assert [path.name for path in (tmp_path / "problems" / "level1").iterdir()] == [found["Small"]["name"]]
    problem = load(found["Small"]["code"])
    model = problem["Model"](*problem["get_init_inputs"]())
    for case in range(found["Small"]["cases"]):
        output = model(*problem["get_inputs"](case))
        assert not torch.allclose(output, torch.zeros(()), atol=0.01, rtol=0.01)
        assert not torch.allclose(output, model(*problem["get_inputs"](case)), atol=0.01, rtol=0.01)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A block of a source under MIT, one under the GPL, and one of MIT that does not run."""
    base = tmp_path_factory.mktemp("export")
    free, bound = extractions.source(base, "alpha@1.0"), extractions.source(base, "beta@2.0")
    rows = [scale(free), scale(bound), extractions.block(free, "Still")]
    extractions.write(base / "out", [Result(row, ((row.source, row.path),)) for row in rows], [free, bound])
    return base / "out"


def test_code_that_may_not_leave_stays(blocks: Path, tmp_path: Path, lemur_here: Any) -> None:
    done = lemur_here("export", blocks, "--format", "kernelbench", "--out", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    skipped = {"does not run forward": 1}
    assert json.loads(done.stdout) == {"folder": "out", "rows": {"problems": 1}, "skipped": skipped, "withheld": 1}
    files = {
        path.relative_to(tmp_path / "out").as_posix(): path for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    assert {name for name in files if name.endswith(".py")} == {"level1/1_Scale.py"}
    assert not any(b"beta" in path.read_bytes() for name, path in files.items() if name != "manifest.json")
    (problem,) = datasets.load_dataset(str(tmp_path / "out"), split="test", cache_dir=str(tmp_path / "cache"))
    assert problem["code"] == files["level1/1_Scale.py"].read_text()
    assert "\\`" not in files["README.md"].read_text()
    assert yaml.safe_load(files["README.md"].read_text().split("---\n")[1])["license"] == "mit"
    assert lemur_here("verify", "out", cwd=tmp_path).returncode == 0
    parent = read_manifest(tmp_path / "out").parents[0]
    assert (parent.kind, parent.name) == ("extraction", blocks.name)


def test_other_folders_are_refused_in_one_line(blocks: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no conversations; create it again with `lemur extract \.\.\. --chat`$"):
        export_folder(blocks, "prompt-completion", tmp_path / "out")
    export_folder(blocks, "kernelbench", tmp_path / "out")
    with pytest.raises(UserError, match=r"holds an export; --format kernelbench needs an extraction$"):
        export_folder(tmp_path / "out", "kernelbench", tmp_path / "again")
    with pytest.raises(UserError, match="exists already"):
        export_folder(blocks, "kernelbench", tmp_path / "out")
    export_folder(blocks, "kernelbench", tmp_path / "out", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing temporary is left"
    assert get_args(ExportForm) == ("kernelbench", "prompt-completion")
    assert pq.read_table(tmp_path / "out" / "data" / "problems").num_rows == 1
    for name in ("one", "two"):
        export_folder(blocks, "kernelbench", tmp_path / name)
    one, two = ([(o.path, o.sha256) for o in read_manifest(tmp_path / name).outputs] for name in ("one", "two"))
    assert one == two
