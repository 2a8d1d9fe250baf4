"""What conversations say is so: measured again here, outside the sandbox, on the fixture's own networks."""

import ast
import difflib
import traceback
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from curate.compute.runs import InputCase, RunRequest, open_box, read_answer
from curate.folder.chat import MEASURE, Fault, NetworkFacts, find_faults, plan_faults
from manifests.conversations import read_fenced_code
from manifests.records import CHAT_KINDS
from tests.builders.suites import read_files, table
from tests.curate.chat.conftest import NETWORKS

Row = dict[str, Any]
Chat = dict[tuple[str, str], Row]


def build(code: str) -> Any:
    torch.manual_seed(0)
    space: dict[str, Any] = {"__name__": "network"}
    exec(compile(code, "network.py", "exec"), space)
    prm = {"lr": 0.1, "momentum": 0.9, "transform": "norm_32", "batch": 2}
    net = space["Net"]((2, 3, 32, 32), (10,), prm, torch.device("cpu")).eval()
    with torch.no_grad():
        net.shown = net(torch.rand(2, 3, 32, 32))
    return net


def answer_code(row: Row) -> str:
    (code,) = read_fenced_code(row["assistant"])
    return code


def test_design_names_the_measures_of_the_file_that_it_gets(chat: Chat) -> None:
    row = chat["plain", "design"]
    assert answer_code(row) == NETWORKS["plain"]
    net = build(NETWORKS["plain"])
    assert sum(p.numel() for p in net.parameters()) == 322
    for fact in (
        "for the task img-classification on the data set cifar-10.",
        "Net(in_shape=(2, 3, 32, 32), out_shape=(10,), prm={'batch': 2, 'lr': 0.1, 'momentum': 0.9, 'transform': 'norm_32'},",
        "Parameters: 322, all trainable.",
        "counts them: 442,528.",
        "Layers of torch.nn: BatchNorm2d x 1, Conv2d x 1, Linear x 1, ReLU x 1.",
        "Methods besides `forward`: `train_setup`, `learn`.",
        "Recorded result of its training in batches of 64: iou 0.75 after 1 epoch.",
    ):
        assert fact in row["user"], fact


def test_results_of_other_sizes_are_not_stated(chat: Chat) -> None:
    asked = chat["captions", "design"]["user"]
    assert "out_shape=(1000,)" in asked
    assert "Recorded result" not in asked, "the network of that result had another vocabulary"


def test_a_repair_fails_as_stated_and_is_answered_with_the_file(chat: Chat) -> None:
    repaired = {name: row for (name, kind), row in chat.items() if kind == "repair"}
    assert {"plain", "blocks"} <= set(repaired)
    for name, row in repaired.items():
        assert answer_code(row) == NETWORKS[name]
        (broken,) = read_fenced_code(row["user"])
        changed = [line for line in difflib.ndiff(NETWORKS[name].split("\n"), broken.split("\n")) if line[0] in "+-"]
        assert 1 <= len(changed) <= 2, "one line differs"
        if name == "captions":
            continue  # it is run on other inputs
        with pytest.raises(Exception) as caught:  # noqa: PT011 (any: the message is looked for below)
            build(broken)
        message = " ".join(str(caught.value).split())
        assert f"{type(caught.value).__name__}: {message[:200]}" in row["user"]
        frames = [frame for frame in traceback.extract_tb(caught.tb) if frame.filename == "network.py"]
        lines = [f'  File "network.py", line {frame.lineno}, in {frame.name}' for frame in frames]
        assert "Traceback (most recent call last):" in row["user"]
        assert [line for line in row["user"].split("\n") if line.startswith('  File "network.py"')] == lines


def test_each_network_and_kind_has_a_conversation_or_a_reason(snapshot: Path, chat: Chat) -> None:
    rows = pq.read_table(snapshot / "chat_drops.parquet").to_pylist()
    drops = {(row["nn"].removeprefix("net-"), row["task"]): (row["reason"], row["detail"]) for row in rows}
    assert not set(drops) & set(chat)
    assert set(drops) | set(chat) == {(name, kind) for name in NETWORKS for kind in CHAT_KINDS}
    assert {kind for _, kind in chat} == set(CHAT_KINDS)
    for name, reason, detail in (
        ("fails", "does_not_run", "construct_failed: KeyError: 'width'"),
        ("unknown", "does_not_run", "unknown_input: prm names no transform"),
        ("long", "too_long", "tokens; the limit is 1,500"),
    ):
        for kind in CHAT_KINDS:
            assert drops[name, kind][0] == reason
            assert detail in drops[name, kind][1]


CASE = InputCase((2, 3, 8, 8), (4,))
BUILT = "    def __init__(self, in_shape, out_shape, prm, device):\n        super().__init__()\n"
HEAD = f"import random\nimport torch\nimport torch.nn as nn\n\nclass Net(nn.Module):\n{BUILT}"

#: Draws how wide it is: 0 and 1 as seeds give 50 and 18.
DRAWN = f"""{HEAD}        self.head = nn.Linear(192, random.randint(1, 100))

    def forward(self, x):
        return self.head(x.flatten(1))
"""

#: Its parts are fixed, but how many samples its second layer gets depends on weights and inputs.
DETECTS = f"""{HEAD}        self.stem = nn.Conv2d(3, 4, 1)
        self.pick = nn.Linear(1, 5)

    def forward(self, x):
        scores = self.stem(x)
        return self.pick(scores[scores > 0][:, None])
"""

#: Its parts are called in another order than they are defined, in every way that there is, one of them in vain.
PARTS = f"""{HEAD}        self.criterion = nn.CrossEntropyLoss()
        self.spare = nn.LazyLinear(1)
        self.last = nn.Linear(4, 4)
        self.again = self.last
        self.list = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 4, 1)), Own()])
        self.broken = nn.Linear(99, 1).requires_grad_(False)
        self.first = nn.ReLU()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        x = self.list[1](self.list[0](self.first(x)))
        try:
            x = self.broken(x)
        except RuntimeError:
            pass
        x = self.last(x.mean((2, 3)))
        return self.attend(x[None], x[None], x[None])[0][0]

    def learn(self, train_data):
        pass


class Own(nn.Module):
    def forward(self, x):
        return x @ x
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    codes = {"drawn": DRAWN, "detects": DETECTS, "parts": PARTS, "fails": "x = 1\n"}
    requests = {name: RunRequest(code, asdict(CASE), {}) for name, code in codes.items()}
    with open_box([MEASURE], jobs=1, unsafe=False) as box:
        return {reply.key: read_answer(reply) for reply in MEASURE.run(box, requests)}


def test_what_is_measured_of_a_network_that_runs(answers: dict[str, Any]) -> None:
    """Losses and own classes are no layers, a shared one is one; what only ran in vain is not counted as run."""
    assert answers["fails"].fault == "no_net: the file defines no class Net"
    drawn = answers["drawn"]
    assert (drawn.runs, drawn.category) == (False, "not_measured")
    assert drawn.error.startswith("chance decides its architecture: {'parameters': 9650, ")
    assert answers["detects"] == NetworkFacts(26, 26, 0, {"Conv2d": 1, "Linear": 1}, ())
    facts = answers["parts"]
    assert facts.layers == {"Linear": 2, "Conv2d": 1, "LazyLinear": 1, "MultiheadAttention": 1, "ReLU": 1}
    assert facts.parameters == facts.trainable + 100 == (4 * 3 + 4) + 2 * (4 * 4 + 4) + (12 * 4 + 12) + 100
    attention = 4 * 2 * 4 * 4 + 2 * 2 * 2 * 2 * 2  # four projections; two products for each of two heads
    assert facts.multiply_adds == 2 * 64 * 4 * 3 + 2 * 4 * 8 * 8 * 8 + 2 * 4 * 4 + attention
    assert facts.methods == ("learn",)


# Faults as text: before and after.


BEFORE = read_files(__file__, "repair.md")["BEFORE"]


def by_kind(code: str) -> dict[str, list[Fault]]:
    found = defaultdict(list)
    for fault in find_faults(code):
        found[fault.kind].append(fault)
    return found


@table(__file__, "repair.md", "Faults", globals())
def test_faults(kind: str, old: str, new: str) -> None:
    found = {fault.apply(BEFORE): fault for fault in by_kind(BEFORE)[kind]}
    for code, fault in found.items():
        ast.parse(code)
        pairs = zip(BEFORE.split("\n"), code.split("\n"), strict=False)
        assert next(at for at, (one, other) in enumerate(pairs, 1) if one != other) == fault.line
        if kind == "wrong_attribute":
            wrong, right = fault.right.split("`")[1:4:2]
            assert wrong not in BEFORE, "a wrong name is nowhere in the file"
            assert wrong in code
            assert right in BEFORE.split("\n")[fault.line - 1]
    assert BEFORE.count(old) == 1
    assert BEFORE.replace(old, new) in found


@table(__file__, "repair.md", "Where names and arguments go wrong", globals())
def test_where_names_and_arguments_go_wrong(line: str, kind: str) -> None:
    code = f"class Net:\n    def forward(self, x, y):\n        {line}\n\n    def other(self):\n        {line}\n"
    found = {kind: [fault.right.split("`")[3] for fault in of_kind] for kind, of_kind in by_kind(code).items()}
    assert "; ".join(f"{kind}: {', '.join(names)}" for kind, names in found.items()) == kind


def test_one_fault_of_each_kind_is_tried_in_an_order_of_the_seed_and_the_record() -> None:
    plans = [plan_faults(BEFORE, seed, record) for seed in range(5) for record in ("a", "b")]
    kinds = [[fault.kind for fault in plan] for plan in plans]
    assert all(sorted(one) == sorted(by_kind(BEFORE)) for one in kinds)
    assert plan_faults(BEFORE, 0, "a") == plans[0]
    assert len({tuple(one) for one in kinds}) > 5
    assert len({fault for plan in plans for fault in plan if fault.kind == "wrong_attribute"}) > 2
    with pytest.raises(SyntaxError):
        plan_faults("def f(:\n", 0, "a")
