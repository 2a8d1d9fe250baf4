"""What conversations say is so: measured again here, outside the sandbox, on the fixture's own networks."""

import difflib
import traceback
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from manifests.conversations import read_fenced_code
from manifests.records import CHAT_KINDS

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


def test_design_names_the_measures_of_the_file_that_it_gets(chat: Chat, networks: dict[str, str]) -> None:
    row = chat["plain", "design"]
    assert answer_code(row) == networks["plain"]
    net = build(networks["plain"])
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


def test_a_repair_fails_as_stated_and_is_answered_with_the_file(chat: Chat, networks: dict[str, str]) -> None:
    repaired = {name: row for (name, kind), row in chat.items() if kind == "repair"}
    assert {"plain", "blocks"} <= set(repaired)
    for name, row in repaired.items():
        assert answer_code(row) == networks[name]
        (broken,) = read_fenced_code(row["user"])
        changed = [line for line in difflib.ndiff(networks[name].split("\n"), broken.split("\n")) if line[0] in "+-"]
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


def test_each_network_and_kind_has_a_conversation_or_a_reason(
    snapshot: Path, chat: Chat, networks: dict[str, str]
) -> None:
    rows = pq.read_table(snapshot / "chat_drops.parquet").to_pylist()
    drops = {(row["nn"].removeprefix("net-"), row["task"]): (row["reason"], row["detail"]) for row in rows}
    assert not set(drops) & set(chat)
    assert set(drops) | set(chat) == {(name, kind) for name in networks for kind in CHAT_KINDS}
    assert {kind for _, kind in chat} == set(CHAT_KINDS)
    for name, kinds, reason, detail in (
        ("fails", CHAT_KINDS, "does_not_run", "construct_failed: KeyError: 'width'"),
        ("elsewhere", CHAT_KINDS, "does_not_run", "missing_dependency: ModuleNotFoundError"),
        ("unknown", CHAT_KINDS, "does_not_run", "unknown_input: prm names no transform"),
        ("long", CHAT_KINDS, "too_long", "tokens; the limit is 1,500"),
    ):
        for kind in kinds:
            assert drops[name, kind][0] == reason
            assert detail in drops[name, kind][1]
