"""Conversations of a snapshot as prompts with completions, preferences and questions, in the forms that trainers read."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from lemur.export.command import export_folder
from lemur.export.conversations import export_proofs, list_conversations
from lemur.export.evaluation import ask_line
from lemur_core.files.errors import UserError
from manifests.conversations.conversation import read_fenced_code
from manifests.conversations.verify import chat_rows
from manifests.records import SynthesisAttempt

Row = dict[str, Any]
_CALL = re.compile(r"`(?:Net\()?(in_shape=.*?prm=\{.*?\})")


@pytest.fixture(scope="module")
def licensed(make_chat: Callable[..., Path], rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snapshot of all networks, whose license is stated."""
    return make_chat(tmp_path_factory.mktemp("licensed") / "snapshot", rows, license="MIT")


def read(folder: Path, name: str) -> dict[str, list[Row]]:
    """The rows of a table by split."""
    paths = sorted((folder / "data" / name).glob("*.parquet"))
    return {path.name.partition("-")[0]: pq.read_table(path).to_pylist() for path in paths}


def test_completions_are_the_conversations(licensed: Path, tmp_path: Path) -> None:
    report = export_folder(licensed, "prompt-completion", tmp_path / "out")
    tables, rows = read(tmp_path / "out", "prompt_completion"), list(chat_rows(licensed))
    exported = [(split, row) for split, part in tables.items() for row in part]
    assert report.rows == {"prompt_completion": len(rows)}
    assert {(split, row["id"], json.dumps([*row["prompt"], *row["completion"]])) for split, row in exported} == {
        (split, row["id"], json.dumps(row["messages"])) for split, row in rows
    }
    assert all([item["role"] for item in row["completion"]] == ["assistant"] for _, row in exported)


def test_rejected_answers_fail_and_chosen_ones_run(licensed: Path, tmp_path: Path) -> None:
    export_folder(licensed, "preference", tmp_path / "out")
    rows = [row for part in read(tmp_path / "out", "preference").values() for row in part]
    assert {row["origin"] for row in rows} == {"repair", "design"}
    assert len({row["id"] for row in rows}) == len(rows)
    ran = 0
    for row in rows:
        right, wrong = (read_fenced_code(row[name][0]["content"])[-1] for name in ("chosen", "rejected"))
        texts = [row[name][0]["content"].replace(code, "") for name, code in (("chosen", right), ("rejected", wrong))]
        assert texts[0] == texts[1], "only the file differs"
        assert 1 <= len({*right.splitlines()} ^ {*wrong.splitlines()}) <= 4, row["failure"]
        request = row["prompt"][-1]["content"]
        assert (wrong in read_fenced_code(request)) == (row["origin"] == "repair")
        if "out_shape=(10,)" in request:
            assert run(right, request)
            assert not run(wrong, request), row["failure"]
            ran += 1
    assert ran > 3


def test_code_without_a_license_stays(snapshot: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not known to permit redistribution; nothing was exported"):
        export_folder(snapshot, "preference", tmp_path / "out")


def run(code: str, request: str) -> bool:
    """Whether a network runs, built as the request says; by code that shares nothing with the product."""
    match = _CALL.search(request)
    assert match is not None, request
    arguments = eval(f"dict({match[1]})")
    names: Row = {"__name__": "net"}
    try:
        exec(code, names)
        net = names["Net"](**arguments, device=torch.device("cpu"))
        output = net(torch.randn(arguments["in_shape"]))
    except Exception:  # noqa: BLE001 (a fault may raise anything)
        return False
    return tuple(output.shape) == (arguments["in_shape"][0], *arguments["out_shape"])


@pytest.mark.parametrize(("form", "trainer"), [("prompt-completion", "whole tables"), ("preference", "DPO")])
def test_trainers_take_a_step(licensed: Path, tmp_path: Path, form: Any, trainer: str) -> None:
    pytest.importorskip("trl", reason="trl is not installed; python -m benchmarks.finetune installs it for itself")
    export_folder(licensed, form, tmp_path / "out")
    command = [sys.executable, "-P", "-m", "benchmarks.finetune", str(tmp_path / "out"), "--steps", "1", "--batch", "1"]
    here = {**os.environ, "LEMUR_FINETUNE_HERE": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    options = ["--config", form.replace("-", "_")]
    done = subprocess.run([*command, *options], env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"\n{trainer}: " in done.stdout


def repair(fault: str, row: Row) -> Row:
    return {**row, "variant": fault}


def test_a_fault_is_asked_for_by_its_line(snapshot: Path) -> None:
    rows = [row for _, row in list_conversations(snapshot, "snapshot") if row["task"] == "repair"]
    asked = [(row, question) for row in rows if (question := ask_line(row)) is not None]
    assert asked
    for row, question in asked:
        broken, works = (read_fenced_code(message["content"])[0].splitlines() for message in row["messages"][1:])
        number = int(question.target) - 1
        assert broken[:number] == works[:number], "the file is unchanged before the line"
        assert broken[number] != works[number]
        assert row["messages"][2]["content"] not in question.question
    assert ask_line(repair("missing_import line 1", rows[0])) is None, "an import may stand in any of several lines"


def test_an_evaluation_states_its_tasks(licensed: Path, tmp_path: Path) -> None:
    held = [
        row for split, row in list_conversations(licensed, "snapshot") if split == "test" and row["task"] == "repair"
    ]
    if not any(ask_line(row) for row in held):
        with pytest.raises(UserError, match="has nothing for --format eval"):
            export_folder(licensed, "eval", tmp_path / "out")
        return
    export_folder(licensed, "eval", tmp_path / "out")
    stated = yaml.safe_load((tmp_path / "out" / "eval.yaml").read_text())
    assert [(task["id"], task["config"], task["split"]) for task in stated["tasks"]] == [
        ("fault_line",) * 2 + ("test",)
    ]


def attempt(number: int, code: str | None, failed: str | None, **changes: Any) -> SynthesisAttempt:
    facts: Row = {
        "model": "m",
        "model_digest": None,
        "round": 0,
        "form": "code",
        "blocks": (),
        "parent": None,
        "goal": "g",
    }
    facts |= {"prompt": json.dumps([{"role": "user", "content": f"request {number}"}]), "plan": None, "answer": code}
    facts |= dict.fromkeys(("finish", "prompt_tokens", "answer_tokens", "originality"))
    facts |= {"sampling": "{}", "seed": 0, "passed": (), "facts": "{}", "nn": None if failed else "syn"}
    digest = None if code is None else f"{sum(code.encode()):064x}"
    error = None if failed is None else "why"
    stated = {"attempt": number, "code": code, "failed": failed, "error": error, "code_sha256": digest}
    return SynthesisAttempt(**{**facts, **stated, **changes})


def test_proofs_prefer_what_passed_every_step() -> None:
    attempts = [
        attempt(0, "a = 1", "runs"),
        attempt(0, "a = 2", None, round=1, prompt="[]"),  # answers the error, and so the first request
        attempt(0, "a = 3", "novel", model="other"),
        attempt(0, None, "answer", model="third"),
        attempt(1, "b = 1", "runs"),
        attempt(2, "c = 1", None),
        attempt(3, "d = 1", "runs", form="delta"),
    ]
    contents = export_proofs(attempts, "MIT")
    rows = contents.tables["preference"]["train"]
    pairs = [tuple(read_fenced_code(part[0].content)[0] for part in (row.chosen, row.rejected)) for row in rows]  # type: ignore[union-attr]
    assert pairs == [("a = 2\n", "a = 1\n"), ("a = 2\n", "a = 3\n")]
    assert {row.prompt[0].content for row in rows} == {"request 0"}  # type: ignore[union-attr]
    assert [row.failure for row in rows] == ["runs: why", "novel: why"]  # type: ignore[union-attr]
    assert contents.skipped == {"no accepted answer to the request": 1, "no failed answer to the request": 1}
