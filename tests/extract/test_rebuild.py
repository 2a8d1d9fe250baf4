"""Blocks are rebuilt from their specs alone; a wrong or incomplete spec is reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extract.model.results import code_columns
from extract.proofs.equivalence import BlockWithOriginal
from extract.proofs.rebuild import RebuildAnswer, count_rebuilt, make_request, rebuild_all, rebuild_to
from extract.resolve.index import FactsIndex
from extract.specs.make import add_rebuild_outcome, build_algorithm, make_spec, store_graphs, to_line
from lemur_core.files.errors import UserError
from lemur_core.graphs.identity import compute_identities
from lemur_core.graphs.sizes import Sized
from manifests.records import Block, Spec
from tests.builders import extractions, visits
from tests.builders.suites import read_files

TEXTS = read_files(__file__, "rebuild.md")

CALL = ["torch.randn(2, 8, 6, 6)", "torch.randn(3)", "torch.randn(2, 8)"]
ARGUMENTS = {"init": {"args": ["8"], "kwargs": {}}, "forward": {"args": CALL, "kwargs": {}}}
PLAIN = {"init": {"args": [], "kwargs": {}}, "forward": {"args": ["torch.rand(2, 50)"], "kwargs": {}}}
IMAGE = {"init": {"args": [], "kwargs": {}}, "forward": {"args": ["torch.randn(2, 3, 8, 8)"], "kwargs": {}}}
ABOUT = {"name": "Blur", "path": "a/blur.py", "start_line": 3, "end_line": 9, "license": "MIT"}
NAMES = ("image", "unused", "skip")
CODES = {
    "blur": (TEXTS["BLUR"], ARGUMENTS, NAMES),
    "table": (TEXTS["TABLE"], PLAIN, ("x",)),
    "values": (TEXTS["VALUES"], PLAIN, ("x",)),
    "rotary": (TEXTS["ROTARY"], PLAIN, ("x",)),
    "crop": (TEXTS["CROP"], IMAGE, ("x",)),
}


def changed(stored: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(stored))
    change(copied)
    return copied


def another_formula(stored: dict[str, Any]) -> None:
    text = json.dumps(stored["eval"]["nodes"], ensure_ascii=False)
    assert "W ÷ 2" in text
    stored["eval"]["nodes"] = json.loads(text.replace("W ÷ 2", "W - 3"))


def another_kernel(stored: dict[str, Any]) -> None:
    """The pooling averages 3x3 windows with stride two."""
    arguments = next(arguments for op, arguments, *_ in stored["eval"]["nodes"] if op == "avg_pool2d")
    kernel = next(pair for pair in arguments if pair[0] == "kernel_size")
    assert kernel[1] == {"numbers": "2×2"}
    kernel[1] = {"numbers": "1×1"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    codes = {name: ("Blur", code, arguments) for name, (code, arguments, _) in CODES.items()}
    return visits.trace(tmp_path_factory.mktemp("index"), codes)


@pytest.fixture(scope="module")
def told(answers: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, RebuildAnswer]:
    requests = {}
    for name, (code, arguments, names) in CODES.items():
        stored = store_graphs(answers[name], names)
        original = BlockWithOriginal(name, "Blur", code, "", (), (), arguments).run(())
        requests[name] = make_request(name, ABOUT, stored, original)
        if name == "blur":
            requests["blur alone"] = make_request("blur alone", ABOUT, stored, None)
            requests["formula"] = make_request("formula", ABOUT, changed(stored, another_formula), original)
            requests["kernel"] = make_request("kernel", ABOUT, changed(stored, another_kernel), original)
    with FactsIndex(tmp_path_factory.mktemp("index") / "facts.sqlite") as index:
        return dict(rebuild_all(requests, index, jobs=1))


def test_written_and_equal(told: dict[str, RebuildAnswer]) -> None:
    answer = told["blur"]
    assert (answer.rebuilds, answer.error, answer.kind) == (True, "", "equal")
    # The recorded call, the recorded call with another size, that with another batch, and one further of both.
    assert [shapes[0] for shapes in answer.shapes][:2] == [[2, 8, 6, 6], [2, 8, 12, 12]]
    assert len(answer.shapes) > 2
    assert answer.varied == ["image[0]", "image[2]", "image[3]", "skip[0]"]
    source = answer.source or ""
    assert source.startswith(
        "# Blur, written from what blur computes.\n#\n# Origin:  a/blur.py, lines 3-9\n# Licence: MIT"
    )
    assert "# Inputs:  image B×8×H×W, skip B×8" in source
    assert "def forward(self, image, skip):" in source, "what is not used is not taken"


def test_the_second_recorded_case_refutes(told: dict[str, RebuildAnswer]) -> None:
    answer = told["crop"]
    assert "return x\n" in (answer.source or ""), "in its first case the block returns its input"
    assert answer.rebuilds is False
    assert answer.error == (
        "in eval mode, inputs of 2×3×16×16: output 0: torch.float32 (2, 3, 16, 16)"
        " where the original has torch.float32 (2, 3, 8, 8)"
    )


def test_a_wrong_spec_and_values_that_change_the_steps_are_found_a_buffer_is_computed_again(
    told: dict[str, RebuildAnswer],
) -> None:
    assert told["rotary"].rebuilds is True
    assert "register_buffer" not in (told["rotary"].source or "")
    assert told["kernel"].rebuilds is told["values"].rebuilds is False
    assert told["values"].error.startswith("in eval mode, inputs of 2×50: output 0: ")


def test_without_the_original_nothing_is_proven(told: dict[str, RebuildAnswer]) -> None:
    alone = told["blur alone"]
    assert (alone.rebuilds, alone.error, alone.kind) == (None, "", "no original to compare with")
    first, other = (str(told[name].source).partition("\n") for name in ("blur alone", "blur"))
    assert first[2] == other[2]


def test_formulas_that_do_not_hold_are_left_out(
    told: dict[str, RebuildAnswer], answers: dict[str, dict[str, Any]]
) -> None:
    found = told["formula"]
    assert found.rebuilds is False
    assert str(found.sizes_fail).startswith("in eval mode, inputs of 2×8×12×12, ")
    algorithm = build_algorithm(add_rebuild_outcome(answers["blur"], found.facts, found.sizes_fail), NAMES)
    assert (algorithm.rebuilds, algorithm.sizes) == (False, {})
    assert str(algorithm.fixed).startswith("the formulas do not hold: in eval mode, ")
    assert compute_identities(Sized.from_json(dict(algorithm)).evaluate())["graph"] == answers["blur"]["graph"]


def test_what_no_spec_holds_is_a_stated_cause(
    told: dict[str, RebuildAnswer], answers: dict[str, dict[str, Any]]
) -> None:
    assert told["table"].error == "a constant of float32 50 whose values no graph holds"
    assert told["table"].kind == "no module"
    counts = count_rebuilt([told["table"], told["blur"]])
    assert counts == {"specs": 2, "written": 1, "equal": 1, "other_sizes": 1}
    assert told["table"].sizes_fail is None
    algorithm = build_algorithm(add_rebuild_outcome(answers["table"], told["table"].facts, None), NAMES)
    assert (algorithm.rebuilds, algorithm.varied) == (False, ())
    assert algorithm.rebuild_error == "a constant of float32 50 whose values no graph holds"


@pytest.fixture
def spec(answers: dict[str, dict[str, Any]], tmp_path: Path) -> Path:
    source = extractions.source(tmp_path, "alpha@1.0")
    found = {**answers["blur"], "rebuilds": True, "varied": ("image[0]",)}
    facts = {name: found[name] for name in ("graph", "graph_widths")} | code_columns(TEXTS["BLUR"])
    facts |= {"error_kind": None, "error": None, "arguments": json.dumps(ARGUMENTS)}
    row: Block = extractions.block(source, "Blur", "backward", **facts)
    path = tmp_path / "spec.jsonl"
    path.write_text(to_line(make_spec(row, found)) + "\n", encoding="utf-8")
    return path


def test_a_file_with_a_spec_is_enough(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "blur.py"
    said = rebuild_to(None, str(spec), out)
    assert said.endswith(" lines; not proven: no original here")
    assert "class Blur(nn.Module):" in out.read_text(encoding="utf-8")
    with pytest.raises(UserError, match="exists already; choose another --out, or add --force"):
        rebuild_to(None, str(spec), out)
    with pytest.raises(UserError, match=r"blur\.py: Not a directory; choose another --out"):
        rebuild_to(None, str(spec), out / "blur.py")
    with pytest.raises(UserError, match="give one, or name a block and its folder"):
        rebuild_to(None, "Blur", tmp_path / "other.py")


def test_nothing_is_written_of_a_wrong_spec(spec: Path, tmp_path: Path) -> None:
    facts = json.loads(spec.read_text(encoding="utf-8"))
    facts["algorithm"] = changed(facts["algorithm"], another_kernel)
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(facts, indent=2), encoding="utf-8")
    Spec.model_validate(facts)
    with pytest.raises(UserError, match="the graph of its spec is another than it names"):
        rebuild_to(None, str(wrong), tmp_path / "wrong.py")
    assert not (tmp_path / "wrong.py").exists()
    wrong.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"contains no spec: block: Field required; give a line of specs.jsonl"):
        rebuild_to(None, str(wrong), tmp_path / "wrong.py")
