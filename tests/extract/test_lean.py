"""Lean forms: which code is cut or kept, that cut code is never mistaken for other code, and the folder's report."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.arguments.messages import list_sizes
from extract.emit.emit import Emitted
from extract.folder.verify import verify
from extract.model.blocks import load_block
from extract.model.results import Result
from extract.proofs.minimize import LeanColumns, lean_columns, list_requirements, minimize_all
from extract.resolve.index import FactsIndex
from manifests.publishing.staged import stage_files
from tests.builders import extractions
from tests.builders.shown import show_block
from tests.builders.suites import read_files, read_table
from tests.builders.visits import graphs_of, uses, uses_of, visit

TEXTS = read_files(__file__, "lean.md")


def text_of(other: str) -> str:
    """One of the two forms. Args: other: the mark of the lines of the other one."""
    return "".join(line[1:] or "\n" for line in TEXTS["FORMS"].splitlines(keepends=True) if line[0] != other)


FULL = f"{TEXTS['HEAD']}\n{text_of('+')}"
ARGUMENTS = {"init": {"args": ["8"], "kwargs": {}}, "forward": {"args": ["torch.randn(2, 8, 6, 6)"], "kwargs": {}}}
OBSERVED = {"cases": [{"inputs": {"*0": "float32 2x8x6x6"}}, {"inputs": {"*0": "float32 3x8x12x12"}}]}
#: Calls of the corpus: the block's own, two that work, one that does not, and one of a large module.
HINTS = read_table(__file__, "lean.md", "Hints", globals())


def emitted(code: str, **more: Any) -> Emitted:
    """A closed file of two files of one license, and a third one."""
    places = {
        "Gate": ("alpha@1.0", "alpha/blocks.py"),
        "failing": ("alpha@1.0", "alpha/parts.py"),
        "swish_2": ("beta@1.0", "beta/parts.py"),
    }
    changes = {"renamed": ("swish -> swish_2",)}
    licenses, notices = ("MIT", "MIT", "GPL-3.0-only"), (("# © A",), ("# © A", "# © B"), ("# © C",))
    return Emitted(code, {}, tuple(places.values()), licenses, notices, "MIT", places=places, changes=changes, **more)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LeanColumns]:
    plain = {"init": {"args": [], "kwargs": {}}, "forward": ARGUMENTS["forward"]}
    same = "from torch import nn\n\n\nclass Gate(nn.Module):\n    forward = nn.ReLU.forward\n    inplace = False\n"
    # Under the seed, 0.50 is drawn first, and 0.33 after the inputs, as by the printed call.
    chance = "import torch\nfrom torch import nn\n\n\ndef never(x):\n" + "    x = x.abs()\n" * 9 + "    return x\n\n\n"
    chance += "def rare(x):\n    y = x.flip(0)\n    y = y + 1\n    return y\n\n\nclass Gate(nn.Module):\n    def forward(self, x):\n"
    chance += "        n = torch.rand(1)\n        return never(x) if n < 0.2 else rare(x) if n < 0.4 else x * 2\n"
    given: dict[str, tuple[str, Any, Any]] = {
        "gate": (FULL, ARGUMENTS, {}),
        "sets": (FULL, ARGUMENTS, HINTS),
        "asks": (f"# More.\n{TEXTS['ASKS']}", plain, {}),
        "changes": (TEXTS["CHANGES"] + "\n\ndef unused(x):\n" + "    x = x + 1\n" * 9, plain, {}),
        "same": (same, plain, {}),
        "unmade": (TEXTS["FAILS"], ARGUMENTS, {}),
        "chance": (chance, plain, {}),
    }
    requests = {key: uses("Gate", code, calls, OBSERVED, hints) for key, (code, calls, hints) in given.items()}
    folder = tmp_path_factory.mktemp("index")
    visits = visit(folder, requests)
    work = {key: (one, visits[key], emitted(f"# Licence: MIT\n\n{one.code}")) for key, one in requests.items()}
    with FactsIndex(folder / "facts.sqlite") as index:
        return dict(minimize_all(work, index, jobs=1))


def test_what_stays(found: dict[str, LeanColumns]) -> None:
    assert found["gate"]["lean_code"].partition("\n\n")[2].strip() == text_of("-").strip()


def test_a_file_says_what_it_is_good_for(found: dict[str, LeanColumns]) -> None:
    """Further calls of the corpus that work are confirmed, too; if one raises an error, both forms raise it."""
    file = found["gate"]
    assert (file["lean_license"], file["lean_requires"]) == ("MIT", ())
    assert all(len(line) <= 120 for line in file["lean_code"].partition("\n\n")[0].split("\n"))
    head = read_head(file)
    assert "With: definitions from 1 file of alpha@1.0 (MIT); see required_repos.json" in head
    assert "# Licence: MIT\n# © A\n# © B\n# With:" in file["lean_code"]
    assert "beta" not in head
    assert "swish_2" not in head
    assert "train mode, for __init__(8), forward(torch.randn(2, 8, 6, 6)); elsewhere it stops with an error." in head
    assert head.endswith("Cut: 3 definitions, 4 functions, 4 docstrings.")
    assert (
        "__init__(8), forward(torch.randn(2, 8, 6, 6)); __init__(8, deep=True), forward(x=torch.randn(2, 8, 6, 6));"
        " __init__(4, act='relu', fail=True), forward(x=torch.randn(1, 4, 3, 3)); elsewhere" in read_head(found["sets"])
    )


def test_no_lean_form_without_proof(found: dict[str, LeanColumns]) -> None:
    assert found["changes"]["lean_error"].startswith("not as the full form: eval")
    assert found["unmade"]["lean_error"].startswith("does not run again: TypeError")
    assert found["same"] == {"lean_error": "not shorter than the closed file"}
    assert "flip" in found["chance"]["lean_code"]
    # What is asked for by a computed name is there.
    assert found["asks"] == {"lean_error": "not shorter than the closed file"}


def run(code: str, *arguments: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    names: dict[str, Any] = {"__name__": "block"}
    exec(compile(code, "block.py", "exec"), names)
    torch.manual_seed(0)
    gate: Callable[[torch.Tensor], torch.Tensor] = names["Gate"](*arguments)
    return gate


ACTS, SHAPES = ["soft", "swish", "relu", "hard"], [(2, 8, 6, 6), (3, 8, 6, 6), (8, 5, 5)]


@settings(max_examples=12)
@given(st.sampled_from(ACTS), st.booleans(), st.booleans(), st.sampled_from(SHAPES))
def test_never_another_result(
    found: dict[str, LeanColumns], act: str, deep: bool, fail: bool, shape: tuple[int, ...]
) -> None:
    """On any input, a lean form either does the same as the full one, or stops."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def of(code: str) -> torch.Tensor | BaseException:
        try:
            gate = run(code, 8, None, act, deep, fail)
            torch.manual_seed(2)
            return gate(x)
        except Exception as error:  # noqa: BLE001
            return error

    full, lean = of(FULL), of(found["gate"]["lean_code"])
    if isinstance(lean, NotImplementedError):
        assert "left out of the lean form" in str(lean)
    elif isinstance(lean, BaseException):
        assert type(lean) is type(full)
    else:
        assert isinstance(full, torch.Tensor)
        assert torch.equal(full, lean)


def read_head(file: LeanColumns) -> str:
    return " ".join(file["lean_code"].partition("\n\n")[0].replace("#", "").split())


def test_requirements_are_the_imports() -> None:
    code = "import os\nimport torch\n\n\ndef f():\n    from cv2 import x\n    import yaml\n    import tiny\n"
    stated = ["opencv-python-headless", "other", "tiny-nets"]
    assert list_requirements(code, stated) == ("opencv-python-headless", "pyyaml", "tiny-nets")


def test_sizes_that_were_seen_to_work_or_that_tracing_met_are_proved_too(tmp_path: Path) -> None:
    assert list_sizes({"cases": [{"inputs": {"x": "float32 2"}}, {"inputs": {"x": "3"}}]}) == []
    code = FULL.replace("import networkx\n", "").replace("x.dim() == 3", "x.dim() == 9")
    traced = visit(tmp_path, {"gate": uses("Gate", code.replace("len(x) == 3", "False"), ARGUMENTS, OBSERVED)})["gate"]
    sizes_of = graphs_of(traced)["sizes"]
    assert sizes_of.keys() == {"B", "H", "W"}
    *seen, met = uses_of(traced).sizes
    assert seen == list_sizes(OBSERVED) == [[[3, 8, 12, 12]]]
    ((batch, width, height, side),) = met
    assert width == 8
    assert (batch, height, side) != (2, 6, 6)
    assert {batch, height, side} <= {size for sizes in sizes_of.values() for size in sizes}


def written(folder: Path, license_: str, name: str = "beta") -> Path:
    """A folder with one block. Args: license_: of its lean form, whose files are a subset of those of the full one."""
    of = extractions.source(folder, f"{name}@1.0")
    row = extractions.block(of, "Made", level="backward", error_kind=None, error=None)
    lean = lean_columns(extractions.code_of(row.block, license_), (), license_)
    result = Result(row.model_copy(update={**lean, "lean_error": None}), ((of.name, f"{name}/blocks.py"),))
    extractions.write(folder / "out", [result], [of], level="backward")
    return folder / "out"


def faults(folder: Path) -> str:
    return "\n".join(str(check) for check in verify(folder, jobs=1) if not check.ok)


def test_a_folder_with_lean_forms_is_verified(tmp_path: Path) -> None:
    out = written(tmp_path, "GPL-3.0-only")
    assert (out / "lean" / "beta@1.0" / "beta.blocks.Made.py").is_file()
    assert not faults(out)
    report = (out / "report.md").read_text()
    assert "| with a lean form, equal in every bit | 1 | 100 % |" in report
    counts = json.loads((out / "manifest.json").read_text())["counts"]
    assert counts["lean"] == {"blocks": 1, "without": 0, "lines": 10, "full_lines": 10}
    (out / "lean" / "beta@1.0" / "beta.blocks.Made.py").write_text("import torch\n")
    found = faults(out)
    assert "lean/beta@1.0/beta.blocks.Made.py differs from its digest" in found
    assert "lean/beta@1.0/beta.blocks.Made.py, line 1: import torch, not # Made" in found


@pytest.mark.parametrize(("name", "license_"), [("beta", "GPL-3.0-only"), ("beta", "MIT"), ("alpha", "MIT")])
def test_a_form_is_published_under_a_permissive_license(tmp_path: Path, name: str, license_: str) -> None:
    """The source `alpha` is under MIT, `beta` under the GPL."""
    with stage_files(written(tmp_path, license_, name)) as ready:
        (row,) = pq.read_table(ready.files["blocks.parquet"]).to_pylist()
        for form, folder, leaves in (("code", "blocks", name == "alpha"), ("lean_code", "lean", license_ == "MIT")):
            assert (row[form] is not None) == leaves
            assert (f"{folder}/{name}@1.0/{name}.blocks.Made.py" in ready.files) == leaves
        assert [item["license"] for item in ready.withheld] == (["GPL-3.0-only"] if name == "beta" else [])


def test_only_a_lean_form_is_shown_and_loaded_where_only_that_was_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = written(tmp_path, "MIT")
    with stage_files(out) as ready:
        for name, path in ready.files.items():
            (tmp_path / "pulled" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "pulled" / name).write_bytes(path.read_bytes())
    show_block(tmp_path / "pulled", "Made")
    told = capsys.readouterr().out
    assert "lean/beta@1.0/beta.blocks.Made.py (10 lines, MIT), requires nothing" in told
    assert "class Made(torch.nn.Module)" in told
    assert load_block(tmp_path / "pulled", "Made").__name__ == "Made"
    assert load_block(out, "Made", lean=True) is load_block(tmp_path / "pulled", "Made")
    assert load_block(out, "Made") is not load_block(out, "Made", lean=True)
