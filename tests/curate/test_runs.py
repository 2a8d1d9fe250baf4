"""Whether networks run: what LEMUR hands them, the trial in the sandbox, what is kept of outcomes."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.compute.runs import (
    BATCH,
    PRM,
    RUN,
    InputCase,
    NetFailure,
    NetRuns,
    RunRequest,
    build_case,
    complete,
    open_box,
    read_answer,
)
from curate.interface import Snapshot, curate
from curate.model.options import CurateOptions
from extract.proofs.equivalence import MissingOriginal
from lemur_core.sandbox import Limits, cached
from lemur_core.sandbox.server.foreign import one_line, read_missing
from tests.builders.suites import read_table, table
from tests.curate.test_graphs import CODES

Row = dict[str, Any]

#: Short for what hangs, long for a small network on a busy machine.
LIMITS = Limits(wall_seconds=60, cpu_seconds=3, memory_bytes=2 * 2**30)

HEAD = "import torch\nfrom torch import nn\n\n"
SIGNATURE = "    def __init__(self, in_shape, out_shape, prm, device):\n        super().__init__()\n"

RUNS = f"""{HEAD}class Net(nn.Module):
{SIGNATURE}        assert prm["lr"] == 0.1 and prm["batch"] == in_shape[0] == 2 and device.type == "cpu"
        self.drop = nn.Dropout(0.999)
        self.body = nn.Linear(in_shape[1] * in_shape[2] * in_shape[3], out_shape[0])

    def forward(self, x):
        assert not torch.is_grad_enabled() and not self.training
        return self.drop(self.body(x.flatten(1)))
"""
TOLD_AGAIN = f"try:\n    import no_such_package_anywhere\nexcept ImportError:\n    raise ImportError('get it')\n{RUNS}"
LOOPS = RUNS.replace("        return ", "        while True:\n            pass\n        return ")
GREEDY = RUNS.replace("self.drop = ", "self.much = torch.zeros(2**33)\n        self.drop = ")
PRETRAINED = f"""import torchvision
{HEAD}class Net(nn.Module):
{SIGNATURE}        weights = torchvision.models.SqueezeNet1_1_Weights.DEFAULT
        self.one = torchvision.models.squeezenet1_1(weights=weights)
        self.two = torchvision.models.get_model("squeezenet1_1", weights="DEFAULT")
        state = torch.hub.load_state_dict_from_url("https://example.org/weights.pth", map_location="cpu")
        self.three = nn.Linear(1000, out_shape[0])
        self.three.load_state_dict({{name: value for name, value in state.items() if "fc" in name}})
        assert len(self.one.state_dict()) == len(self.two.state_dict()) > 0

    def forward(self, x):
        return self.three(self.one(x) + self.two(x))
"""
CAPTIONS = f"""from ab.nn.loader.coco_.Caption import GLOBAL_CAPTION_VOCAB
{HEAD}class Net(nn.Module):
{SIGNATURE}        assert len(GLOBAL_CAPTION_VOCAB["word2idx"]) == out_shape[0]
        self.start = GLOBAL_CAPTION_VOCAB["word2idx"]["<SOS>"]

    def forward(self, images, captions=None):
        return torch.full((images.size(0), 5), self.start)
"""


def row(code: str, **changed: Any) -> Row:
    prm = {"lr": 0.1, "transform": "norm_32", "batch": 64}
    base = {"nn": "net", "nn_code": code, "task": "img-classification", "dataset": "cifar-10", "metric": "acc"}
    return base | {"epoch": 1, "accuracy": 0.5, "duration": 1.0, "prm": json.dumps(prm)} | changed


@table(__file__, "runs.md", "What a network is given", globals())
def test_what_a_network_is_given(task: str, dataset: str, transform: str, expected: tuple[object, ...]) -> None:
    case = build_case(task, dataset, transform)
    assert isinstance(case, InputCase)
    assert (case.in_shape, case.out_shape, case.dtype, case.output) == expected


@table(__file__, "runs.md", "Why that cannot be told", globals())
def test_why_that_cannot_be_told(task: str | None, dataset: str | None, transform: object, reason: str) -> None:
    found = build_case(task, dataset, transform)
    assert isinstance(found, str)
    assert reason in found


def test_error_lines_are_the_same_everywhere() -> None:
    text = "no such file: /srv/someone/.venv/lib/x/module.py\nat <object 0x7f3a12345678> 3/4 https://a.org/b/c"
    assert one_line(text, 200) == "no such file: module.py at <object 0x…> 3/4 https://a.org/b/c"
    assert one_line("abcdef", 3) == "abc …"


TRIALS: dict[str, tuple[Row, str | None, str]] = read_table(__file__, "runs.md", "Trials", globals())


def run(rows: dict[str, Row], limits: Limits = LIMITS) -> dict[str, NetRuns | NetFailure]:
    requests = {}
    for name, one in rows.items():
        task, dataset, prm = complete(one, one["nn_code"])
        case = build_case(task, dataset, prm.get("transform"))
        assert isinstance(case, InputCase)
        requests[name] = RunRequest(one["nn_code"], asdict(case), prm | {"batch": BATCH})
    stage = replace(RUN, limits=limits)
    with open_box([stage], jobs=1, unsafe=False) as box:
        return {reply.key: read_answer(reply) for reply in stage.run(box, requests)}


@pytest.fixture(scope="module")
def answers() -> dict[str, NetRuns | NetFailure]:
    return run({name: case for name, (case, _, _) in TRIALS.items()})


@pytest.mark.parametrize("name", TRIALS)
def test_trials(answers: dict[str, NetRuns | NetFailure], name: str) -> None:
    (_, category, error), answer = TRIALS[name], answers[name]
    assert answer.runs == (category is None)
    if isinstance(answer, NetFailure):
        assert answer.category == category, answer.error
        assert error in answer.fault
        assert "\n" not in answer.fault


def test_what_loops_or_takes_all_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "time", SimpleNamespace(sleep=lambda _seconds: None))
    limits = Limits(wall_seconds=60, cpu_seconds=1, memory_bytes=2**30)
    loops, greedy = run({"loops": row(LOOPS), "greedy": row(GREEDY)}, limits).values()
    assert isinstance(loops, NetFailure)
    assert loops.fault == "timeout: used more than 1 seconds of CPU"
    assert isinstance(greedy, NetFailure)
    assert greedy.category == "out_of_memory"


def test_the_name_of_a_missing_module_is_short_and_visible() -> None:
    """Foreign code can raise the error itself, with any name."""
    assert read_missing(ModuleNotFoundError("no", name="a.b")) == "a.b"
    for name in ("a" * 10_000, "a" * 10_000 + ".b", ".".join(["a"] * 10_000)):
        assert read_missing(ModuleNotFoundError("no", name=name)) in ("a", "a" * 200)
    assert read_missing(ModuleNotFoundError("no", name="a\n| b")) == ""
    NetFailure("missing_dependency", "no", "a" * 200)
    with pytest.raises(ValueError, match="more than 200 characters"):
        NetFailure("missing_dependency", "no", "a" * 201)
    assert MissingOriginal("no\n\x1b[31m" + "x" * 1000).missing == r"no\n\x1b[31m" + "x" * 188 + " …"


# What networks are run with whose records state no task, and whose codes import nothing.

IMPORTS = "import torch\nfrom torch import nn\n"
NET = """

class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.layer = nn.Conv2d(in_shape[1], out_shape[0], 3)

    def forward(self, x):
        return torch.relu(self.layer(x)).mean((2, 3))
"""


def read_records(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    files = sorted(Path(snapshot).glob("data/records/*.parquet"))
    return {row["nn"]: row for row in pq.read_table(files).to_pylist()}


def write_folder(folder: Path, codes: dict[str, str]) -> Path:
    folder.mkdir()
    for name, code in codes.items():
        (folder / f"{name}.py").write_text(code)
    return folder


def test_a_folder_of_files_is_traced_as_the_same_codes_in_a_table(tmp_path: Path) -> None:
    codes = {"a": CODES["a-sequential"], "b": CODES["b-by-hand"]}
    folder = write_folder(tmp_path / "nets", codes)
    table = tmp_path / "table.jsonl"
    benchmark = {"task": "img-classification", "dataset": "cifar-10", "prm": PRM}
    lines = [json.dumps({"nn": name, "nn_code": code, **benchmark}) for name, code in codes.items()]
    table.write_text("\n".join(lines))
    first = curate(folder, out=tmp_path / "first", options=CurateOptions(prm='{"lr": 0.02}'), jobs=1)
    second = curate(table, out=tmp_path / "second", jobs=1)
    assert first.decisions.equals(second.decisions)
    told = first.decisions[["nn", "kept", "stage"]].itertuples(index=False, name=None)
    assert list(told)[:2] in ([("a", True, None), ("b", False, "graph")], [("a", False, "graph"), ("b", True, None)])
    columns = ("graph", "runs", "split")
    shown = [{nn: [row[name] for name in columns] for nn, row in read_records(one).items()} for one in (first, second)]
    assert shown[0] == shown[1]
    assert all(row["graph"] and row["task"] is None for row in read_records(first).values())
    note = "1 kept network without a stated task, data set or hyperparameters, traced with the usual ones:"
    values = "task img-classification, dataset cifar-10, momentum 0.9, dropout 0.2, epoch 1, transform norm_256"
    assert (first.manifest.details["notes"], second.manifest.details["notes"]) == ([f"{note} {values}"], [])


def test_options_say_what_the_files_are(tmp_path: Path) -> None:
    code = IMPORTS + NET.replace(".mean((2, 3))", "").replace(
        "super()", "assert prm == {'lr': 0.5, 'batch': 3}\n        super()"
    )
    folder = write_folder(tmp_path / "nets", {"a": code})
    options = CurateOptions(task=("img-segmentation",), dataset=("coco",), prm='{"lr": 0.5}')
    [record] = read_records(curate(folder, out=tmp_path / "out", options=options, jobs=1)).values()
    stated = ("img-segmentation", "coco", '{"lr": 0.5}')
    assert (record["task"], record["dataset"], record["prm"], bool(record["graph"])) == (*stated, True)


@table(__file__, "runs.md", "Complete", globals())
def test_complete(stated: tuple[Any, ...], code: str, complete_record: tuple[Any, ...]) -> None:
    assert complete(dict(zip(("task", "dataset", "prm"), stated, strict=True)), code) == complete_record
