"""Running blocks are traced in the sandbox: their specs contain the graph, verify checks it, publish keeps it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from extract.folder.verify import verify
from extract.model.results import Result, code_columns
from extract.proofs.visit import Visit
from extract.search import open_index
from extract.specs.make import build_algorithm, make_spec
from lemur.like import BlockComputation, block_in, compare, features_of, find_similar, open_features, search_like
from lemur_core.files.errors import UserError
from lemur_core.graphs.graph import DRAWS
from lemur_core.graphs.identity import compute_identities, similarity
from lemur_core.graphs.sizes import Sized
from lemur_core.sandbox import Failure, cached
from manifests.publishing.staged import stage_files
from manifests.records import Block, Case, Spec
from tests.builders import extractions, sample_blocks
from tests.builders.suites import read_files, table
from tests.builders.visits import graphs_of, uses, visit

TEXTS = read_files(__file__, "tracing.md")

RENAMED = (
    TEXTS["GATE"].replace("Gate", "Softener").replace("down", "one").replace("weight", "w").replace("Kernel", "Other")
)
NEEDS_VALUES = TEXTS["NEEDS_VALUES"]
FAILS = "from torch import nn\n\n\nclass Gate(nn.Module):\n    def forward(self, x):\n        raise ValueError('no')\n"


def arguments(*inputs: str, init: tuple[str, ...] = (), **kwargs: str) -> dict[str, Any]:
    return {"init": {"args": list(init), "kwargs": kwargs}, "forward": {"args": list(inputs), "kwargs": {}}}


ARGUMENTS = arguments("torch.randn(2, 64, 6, 6)", init=("64",), reduced="8")
PLAIN = arguments("torch.randn(2, 3)")
OPERATIONS = (
    "inputs image N×64×H×W",
    "(1) mean of image; dim 2×3, keepdim -> N×64×1×1",
    "(2) convolution of (1), weight learned 8×64×1×1, bias learned 8; kernel 1×1 -> N×8×1×1",
    "(3) relu of (2) -> N×8×1×1",
    "(4) convolution of (3), weight learned 64×8×1×1, bias learned 64; kernel 1×1 -> N×64×1×1",
    "(5) sigmoid of (4) -> N×64×1×1",
    "(6) mul of image, (5) -> N×64×H×W",
    "returns y: (6), weight: [(4), no tensor]",
)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Visit]:
    given = {
        "gate": (TEXTS["GATE"], ARGUMENTS),
        "values": (NEEDS_VALUES, PLAIN),
        "paired": (TEXTS["PAIRED"], arguments("torch.randn(2, 3)", "torch.randn(2, 5)")),
        "deforms": (TEXTS["DEFORMS"], arguments("torch.randn(2, 4, 6, 6)", "torch.randn(2, 18, 6, 6)")),
        **{name.lower(): (TEXTS[name], PLAIN) for name in ("LAZY", "THINNED", "DRAWS", "ENCODED")},
        "fails": (FAILS, PLAIN),
    }
    requests = {key: uses("Gate", *about) for key, about in given.items()}
    requests["renamed"] = uses("Softener", RENAMED, ARGUMENTS)
    folder = tmp_path_factory.mktemp("index")
    found = visit(folder, requests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached, "Sandbox", None)
        assert visit(folder, requests) == found, "a rerun costs nothing"
    return found


def test_names_play_no_part(traced: dict[str, Visit]) -> None:
    one, other = (graphs_of(traced[block]) for block in ("gate", "renamed"))
    assert one["graph"] == other["graph"]
    told = [build_algorithm(each, ["image"]) for each in (one, other)]
    assert told[0].operations == OPERATIONS
    assert told[1].operations == (*OPERATIONS[:-1], OPERATIONS[-1].replace("weight", "w")), "a key is what it returns"


def test_what_is_told_of_a_run(traced: dict[str, Visit]) -> None:
    found = graphs_of(traced["gate"])
    assert found["route"] == "meta"
    assert found["returns"] == {"items": [["y", "tensor"], ["weight", ["tensor", None]]]}
    assert found["dead_classes"] == ["Conv2d", "Kernel"], "what runs is torch's own"
    assert found["unused_parameters"] == ["dead.bias", "dead.weight"]
    algorithm = build_algorithm(found, ["image"])
    forms = Sized.from_json(dict(algorithm)).evaluate()
    assert compute_identities(forms)["graph"] == found["graph"]
    by_op = {op: [n.scope for n in forms["eval"].nodes if n.op == op] for op in ("input", "parameter")}
    assert by_op["input"] == ["image"]
    assert sorted(by_op["parameter"]) == ["down.bias", "down.weight", "up.bias", "up.weight"]
    assert algorithm.train is None
    assert algorithm.train_error is None


def test_free_sizes_are_told_and_fixed_ones_are_numbers(traced: dict[str, Visit]) -> None:
    algorithm = build_algorithm(graphs_of(traced["gate"]), ["image"])
    assert algorithm.fixed is None
    assert {name: values[0] for name, values in algorithm.sizes.items()} == {"B": 2, "H": 6, "W": 6}
    assert all(len(set(values)) >= 3 for values in algorithm.sizes.values())
    ((_, arguments, types, scope),) = (node for node in algorithm.eval["nodes"] if node[0] == "input")
    assert (dict(arguments), scope) == ({"number": 0, "trained": True}, "image")
    formulas = [size if isinstance(size, int) else size["formula"] for size in types[0][1]]
    assert formulas == ["B", 64, "H", "W"]
    found = graphs_of(traced["values"])
    assert build_algorithm(found, ["x"]).fixed == "Python saw a value on the way"
    assert (found["route"], found["reads_values"]) == ("cpu", True)


def test_a_recorded_case_refutes_sizes_that_were_varied_together(traced: dict[str, Visit]) -> None:
    found = graphs_of(traced["paired"])
    same, other = (Case(inputs={"image": "float32 3×3", "boxes": f"float32 {n}×5"}, outputs=()) for n in (3, 4))
    assert build_algorithm(found, ["image", "boxes"], [same]).operations[0] == "inputs image N×L, boxes N×L2"
    wider = Case(inputs={"image": "float32 3×4", "boxes": "float32 3×5"}, outputs=())
    fewer = Case(inputs={"image": "float32 2×32×6×6"}, outputs=())
    gate = build_algorithm(graphs_of(traced["gate"]), ["image"], [fewer])
    assert gate.operations[0].endswith("; of this run alone: sizes"), "a case has 32 channels instead of 64"
    assert build_algorithm(found, ["image", "boxes"], [wider]).operations[0] == "inputs image N×L, boxes N×L2"
    returns = Case(inputs={"image": "float32 2×64×9×9"}, outputs=("float32 2×64×9×8", "float32 2×64×1×1"))
    gate = build_algorithm(graphs_of(traced["gate"]), ["image"], [returns])
    assert gate.fixed == "sizes that were varied together differ in case 1", "H was 9 at first, W 9 and 8"
    returns = Case(inputs={"image": "float32 2×64×9×9"}, outputs=("float32 2×64×9×9", "float32 2×64×1×2"))
    gate = build_algorithm(graphs_of(traced["gate"]), ["image"], [returns])
    assert gate.operations[0].endswith("; of this run alone: sizes"), "a case returns 2 where the graph has 1"
    refuted = build_algorithm(found, ["image", "boxes"], [same, other])
    assert refuted.fixed == "sizes that were varied together differ in case 2"
    assert refuted.operations[0] == "inputs image 2×3, boxes 2×5; of this run alone: sizes"


def test_draws_and_reads_are_those_of_forward(traced: dict[str, Visit]) -> None:
    found = graphs_of(traced["draws"])
    assert found["draws"] == {"eval": ["random"], "train": ["randint", "random", "numpy.random"]}
    assert found["reads_values"] is False, "the constructor reads, forward does not"
    assert found["fixed"] is None
    assert found["hidden"] == [DRAWS]
    assert build_algorithm(found, ["x"]).operations[0] == "inputs x N×L; of this run alone: branches"


def test_what_comes_from_outside_is_not_called_constant(traced: dict[str, Visit]) -> None:
    found = graphs_of(traced["encoded"])
    assert found["reads_values"] is True
    assert build_algorithm(found, ["x"]).operations == ("of this run alone: sizes, branches", "returns given 2×3")


def test_sizes_that_fail_with_values_are_not_free(traced: dict[str, Visit]) -> None:
    """Without values a deformable convolution takes any number of channels."""
    algorithm = build_algorithm(graphs_of(traced["deforms"]), ["x", "offset"])
    assert algorithm.fixed is not None
    assert re.fullmatch(r"with inputs [\d×]+, [\d×]+ it raises RuntimeError", algorithm.fixed)
    assert algorithm.operations[0] == "inputs x 2×4×6×6, offset 2×18×6×6; of this run alone: sizes"


def test_lazy_modules_take_their_shapes_first(traced: dict[str, Visit]) -> None:
    operations = build_algorithm(graphs_of(traced["lazy"]), ["x"]).operations
    assert operations == ("inputs x N×3", "(1) linear of x, weight learned 5×3, bias learned 5 -> N×5", "returns (1)")
    assert traced["fails"].graphs == Failure("runtime_error: ValueError: no")


def test_a_shape_of_eval_mode_alone_is_not_that_of_the_block(traced: dict[str, Visit]) -> None:
    case = {"inputs": {"x": "float32 2x3"}, "outputs": ["float32 2x3"]}
    observed = json.dumps({**sample_blocks.OBSERVED, "cases": [case], "train_differs": True})
    row = sample_blocks.block(TEXTS["THINNED"], "Gate").model_copy(update={"observed": observed})
    spec = make_spec(row, graphs_of(traced["thinned"]))
    assert (spec.keeps_shape, spec.changes_channels, spec.downsampling) == (None, None, None)
    assert make_spec(row).keeps_shape is None, "there is no graph that shows it"
    same = row.model_copy(update={"observed": observed.replace("true", "false")})
    assert make_spec(same).keeps_shape is True, "equal outputs have equal shapes"


@pytest.fixture(scope="module")
def sound(traced: dict[str, Visit], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One block under MIT, and the same one under the GPL."""
    base = tmp_path_factory.mktemp("traced")
    sources = [extractions.source(base, name) for name in ("alpha@1.0", "beta@2.0")]
    found = graphs_of(traced["gate"])
    case = {"inputs": {"*0": "float32 2x64x6x6"}, "outputs": ["float32 2x64x6x6"]}
    observed = {"parameters": 1096, "trainable": 1096, "buffers": 0, "layers": {"Conv2d": 2}, "cases": [case]}
    facts = {"arguments": json.dumps(ARGUMENTS), "observed": json.dumps(observed), "error_kind": None, "error": None}
    facts |= {name: found[name] for name in ("graph", "graph_widths")}
    results = []
    for of in sources:
        row: Block = extractions.block(of, "Gate", "backward", **facts)
        code = extractions.code_of(row.block, of.license, TEXTS["GATE"])
        results.append(Result(row.model_copy(update=code_columns(code)), ((of.name, row.path),), found))
    extractions.write(base / "out", results, sources, level="backward")
    return base / "out"


def specs_of(folder: Path) -> list[Spec]:
    return [Spec.model_validate_json(line) for line in (folder / "specs.jsonl").read_text().splitlines()]


def test_specs_tell_it(sound: Path) -> None:
    assert [(check.name, check.detail) for check in verify(sound, jobs=1) if not check.ok] == []
    spec, other = specs_of(sound)
    assert spec.algorithm is not None
    assert spec.algorithm.operations == OPERATIONS
    assert [(motif.kind, motif.operations) for motif in spec.algorithm.motifs] == [("pooling", (1,)), ("gate", (5, 6))]
    assert spec.summary.endswith("; Conv2d 2; gate 1, pooling 1")
    assert "Kernel" not in spec.dependencies, "nothing runs in it"
    assert spec.graph == other.graph
    report = (sound / "report.md").read_text()
    assert "| with a graph | 2 | 100 % |\n| different graphs | 1 | 50.0 % |" in report


@table(__file__, "tracing.md", "Verify finds a graph that is not the stated one", globals())
def test_verify_finds_a_graph_that_is_not_the_stated_one(sound: Path, tmp_path: Path, change: Any, says: str) -> None:
    folder = shutil.copytree(sound, tmp_path / "changed")
    lines = [json.loads(line) for line in (folder / "specs.jsonl").read_text().splitlines()]
    change(lines[0]["algorithm"])
    text = "".join(json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n" for line in lines)
    (folder / "specs.jsonl").write_text(text, encoding="utf-8")
    assert says in "; ".join(check.detail for check in verify(folder, jobs=1) if not check.ok)


def test_publish_keeps_it_where_the_licence_is_not_permissive(sound: Path) -> None:
    before = specs_of(sound)
    with stage_files(sound) as ready:
        after = [Spec.model_validate_json(line) for line in ready.files["specs.jsonl"].read_text().splitlines()]
        tables = [path for name, path in ready.files.items() if name.startswith("data/specs/")]
        rows = {row["block"]: row for path in tables for row in pq.read_table(path).to_pylist()}
    assert after[0] == before[0], "MIT"
    assert after[1].algorithm is None
    assert after[1].summary
    assert after[1].summary in before[1].summary
    assert "gate" not in after[1].summary
    assert after[1].graph == before[1].graph, "a digest tells nothing of it"
    assert rows[before[1].block]["algorithm"] is None
    assert rows[before[1].block]["summary"] == after[1].summary
    assert rows[before[0].block]["algorithm"] is not None
    assert {before[1].source} == {withheld["source"] for withheld in ready.withheld}


def test_blocks_that_compute_the_same_are_found(sound: Path) -> None:
    told = search_like(sound, "alpha::Gate", count=10).splitlines()
    assert told[0] == "like alpha@1.0::alpha.blocks.Gate"
    assert told[2:] == ["1.000  1.000  1.000  same               beta@2.0::beta.blocks.Gate  (Other)"]


def test_likeness_is_that_of_the_graphs(sound: Path) -> None:
    index = open_index(sound)
    half = dict(list(block_in(sound, "alpha::Gate").features["graph"].items())[::2])
    database = open_features(sound, index)
    exact = similarity(half, features_of(database, 1)["graph"])
    assert 0 < exact < 1
    assert compare(database, "graph", half, index.size) == pytest.approx({0: exact, 1: exact})
    empty: dict[str, dict[int, int]] = {"words": {}, "shingles": {}}
    hits, _ = find_similar(sound, index, BlockComputation("half", {"graph": half, **empty}, None, None), 10)
    assert [(hit.graph, hit.code, hit.agreement) for hit in hits] == [(pytest.approx(exact), 0.0, "different")] * 2
    with pytest.raises(UserError, match="nothing: no block has a graph or code with anything in common"):
        find_similar(sound, index, BlockComputation("nothing", {"graph": {0: 1}, **empty}, None, None), 10)
