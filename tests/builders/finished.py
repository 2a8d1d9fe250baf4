"""Finished folders of every kind, small and whole: tests of their readers damage copies of them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_sources
from lemur.experts.facts import EVALUATION, load_settings, score_answers
from lemur.experts.injection import ANSWERS, Workspace
from lemur.synthesis.folder import KIND, STEPS, count_attempts, make_row, write_contents
from manifests.folders.manifest import Manifest, Stopwatch, describe_parent, list_outputs, write_manifest
from manifests.folders.tables import write_table
from manifests.records import ExpertAnswer, SynthesisAttempt, arrow_schema
from tests.builders import synthesis, training
from train.ablation import FULL, close_study, open_study, read_study, run_name
from train.data import Cifar10
from train.model.contract import lemur_name

IMAGES = Cifar10("synthetic", "1" * 64, Path(), *(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.zeros(4)) * 2)

SETTINGS = """out = "made"
[data]
libraries = ["library"]
blocks = 16
marks = 8
share = 0.25
[data.domains]
alpha = ["alpha"]
beta = ["beta"]
[base]
model = "base"
"""


def write_all(base: Path) -> dict[str, Path]:
    """Write a folder of each kind. Returns: the folders by a short name; where one is built from another, as siblings."""
    base.mkdir(exist_ok=True)
    blocks = _write_blocks(base)
    snapshot = _write_snapshot(base)
    run = _write_run(base / "run")
    built = {"ablation": _write_study(base / "ablation"), "synthesis": _write_synthesis(base / "synthesis", blocks)}
    return {"blocks": blocks, "snapshot": snapshot, "run": run, **built, **_write_experts(base)}


def _write_blocks(base: Path) -> Path:
    codes = {name: (name, synthesis.HEAD + code) for name, code in synthesis.SOURCES.items()}
    (base / "traced").mkdir()
    return synthesis.write(base, synthesis.traced(base / "traced", codes), chat=True)


def _write_snapshot(base: Path) -> Path:
    """A snapshot with graphs and conversations; beside it more rows."""
    first = [
        ("a-one", "", 8),
        ("a-two", "# SPDX-License-Identifier: GPL-3.0-only\n", 8),
        ("a-three", "class Unused:\n    x = 1\n\n\n", 8),
        ("b-one", "def f(a, b):\n    return a * b + 3\n\n\n", 4),
    ]
    rows = [
        {"nn": name, "nn_code": head + synthesis.network(width=width, make=f"self.net = nn.Linear(3, {width})"), "task": "img-classification", "dataset": "cifar-10",
         "metric": "acc", "epoch": 1, "accuracy": 0.5, "duration": 1.0, "prm": json.dumps({"lr": 0.1, "momentum": 0.9})}
        for name, head, width in first
    ]  # fmt: skip
    rows += [{**rows[0], "epoch": 2}, {**rows[0], "nn": "c-broken", "nn_code": "def ("}]
    _write_lines(base / "rows.jsonl", rows)
    more = [{**rows[0], "nn": "d-new", "nn_code": "\n".join(f"y{n} = {n} * {n} + {n}" for n in range(60))}, rows[1]]
    _write_lines(base / "more.jsonl", more)
    options = CurateOptions(chat=True, license="MIT")
    curate(open_sources([str(base / "rows.jsonl")]), base / "snapshot", options, jobs=1)
    return base / "snapshot"


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _write_run(folder: Path, *, page: bool = True, **changes: Any) -> Path:
    training.write_finished(folder, IMAGES, page=page, data_sha256=IMAGES.sha256, **changes)
    return folder


def _write_study(folder: Path) -> Path:
    plan: dict[str, Any] = {"study": "ablation", "data": IMAGES.label, "data_sha256": IMAGES.sha256, "test_images": 9}
    plan |= {"seeds": [0], "variants": {FULL: {}, "none": {}}}
    open_study(folder, plan)
    (folder / "runs").mkdir()
    for variant in (FULL, "none"):
        _write_run(folder / "runs" / run_name(variant, 0), seed=0, page=False)
    close_study(folder, plan, read_study(folder, plan), IMAGES, None, Stopwatch())
    return folder


def _write_synthesis(folder: Path, library: Path) -> Path:
    code = synthesis.network("SqueezeGate")
    name, digest = lemur_name(code, "syn"), hashlib.sha256(code.encode()).hexdigest()
    common: dict[str, Any] = {"model": "m", "round": 0, "block": "alpha@1.0::alpha.blocks.SqueezeGate",
              "prompt": json.dumps([{"role": "user", "content": "x"}]), "finish": "stop", "facts": json.dumps({"nearest": {"name": "a"}}),
              "prompt_tokens": 3, "answer_tokens": 5, "sampling": "{}", "seed": 0}  # fmt: skip
    attempts = [
        SynthesisAttempt(**common, attempt=0, answer=code, passed=STEPS, failed=None, error=None, code=code, code_sha256=digest, nn=name),
        SynthesisAttempt(**common, attempt=1, answer="x", passed=STEPS[:1], failed=STEPS[1], error="no", code=None, code_sha256=None, nn=None),
    ]  # fmt: skip
    row = make_row(attempts[0], "2" * 64, "3" * 64, "4" * 64, "MIT")
    write_contents(folder, attempts, [row])
    KIND.finish(
        folder,
        Stopwatch(),
        parameters={"model": "m"},
        counts=count_attempts(attempts),
        parents=[describe_parent(library)],
        details={"license": "MIT"},
    )
    return folder


def _write_experts(base: Path) -> dict[str, Path]:
    write_library(base / "library")
    (base / "experts.toml").write_text(SETTINGS)
    workspace = Workspace(load_settings(base / "experts.toml"))
    workspace.make_data()
    fact = workspace.facts[0]
    shared = {name: getattr(fact, name) for name in ("id", "domain", "block", "relation", "code_sha256")}
    answers = [
        ExpertAnswer(**shared, arm=arm, question="q?", routed=None, expected="1", answer=said, correct=said == "1", tokens=9)
        for arm, said in (("closed", "1"), ("oracle", "2"), ("routed", "1"))
    ]  # fmt: skip
    folder = base / "made" / "evaluation"
    folder.mkdir()
    write_table(folder / ANSWERS, arrow_schema(ExpertAnswer), (one.model_dump() for one in answers))
    EVALUATION.finish(
        folder,
        Stopwatch(),
        counts=score_answers(answers) | {"elsewhere": 20},
        parameters={"domains": ["alpha", "beta"], "seed": 0, "least": -1.0},
    )
    return {"facts": base / "made" / "data", "evaluation": folder}


def write_library(folder: Path) -> None:
    """Write made-up specs of classes whose figures hang on their number: experts read nothing else of a library."""
    sources = {"alpha": "alpha@1.0", "beta": "beta@2.0", "other": "other@0.1"}
    folder.mkdir()
    _write_lines(folder / "specs.jsonl", [_spec(*source, number) for source in sources.items() for number in range(20)])
    write_manifest(folder, _manifest(folder, "extraction"))


def _spec(source: str, full: str, number: int) -> dict[str, Any]:
    name = f"{source.title()}Block{number}"
    return {
        "block": f"{full}::{source}.blocks.{name}", "name": name, "source": full, "start_line": 1, "end_line": 5 + 3 * number, "parameters": 64 * number,
        "layers": {"Linear": number % 5 + 1, "ReLU": 1}, "algorithm": {"eval": {"nodes": [[0]] * (number % 11 + 1)}} if number % 4 else None,
        "code_sha256": hashlib.sha256(name.encode()).hexdigest(),
    }  # fmt: skip


def _manifest(folder: Path, kind: str, **stated: Any) -> Manifest:
    empty: dict[str, Any] = {"versions": {}, "parameters": {}, "inputs": [], "counts": {}, "details": {}}
    return Manifest(kind=kind, outputs=list_outputs(folder), measured=Stopwatch().measure(), **{**empty, **stated})
