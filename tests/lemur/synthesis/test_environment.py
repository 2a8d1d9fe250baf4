"""Requests as an environment: what is in the folder, how answers are graded, and a run of verifiers' own evaluator."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lemur import Grader
from lemur.export.command import export_folder
from lemur.folders import list_items, trace, verify_folder
from lemur.synthesis.attempts.steps import STEPS
from lemur_core.files.errors import UserError
from manifests.interface import open_folder
from tests.builders import synthesis
from tests.builders.model_server import completion, serving

GATE = "alpha@1.0::alpha.blocks.SqueezeGate"
GOOD = synthesis.network("SqueezeGate", use="x = self.block(x).tanh() + x")
#: Answers by the step that they fail.
ANSWERS = {
    None: GOOD,
    "syntax": "def (\n",
    "policy": GOOD.replace("import torch\n", "import os\nimport torch\n", 1),
    "closed": GOOD.replace(".tanh()", ".tanh() * scale"),
    "used": synthesis.network("SqueezeGate", use="x = x.relu()"),
    "conforms": synthesis.network("SqueezeGate", block=synthesis.TEXTS["OWN_GATE"].replace("=4", "=2")),
}


@pytest.fixture(scope="module")
def folder(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("environment") / "requests"
    assert export_folder(library, "verifiers", out).rows == {"requests": 2}
    return out


@pytest.fixture(scope="module")
def request_row(folder: Path) -> dict[str, Any]:
    return next(row for row in open_folder(folder).rows("requests") if row["block"] == GATE)


def answer(code: str) -> str:
    return f"Here it is.\n```python\n{code}```\n"


def test_the_folder_is_finished_and_says_nothing_of_the_source(folder: Path, library: Path) -> None:
    assert [check.name for check in verify_folder(folder) if not check.ok] == []
    assert [item.names[0] for item in list_items(folder, "*gate*")] == [GATE]
    links = trace(GATE, [folder, library])
    assert [link.what for link in links][:4] == ["requests", "manifest", "parent", "block"]
    with pytest.raises(UserError, match=r"no row of .* has that name; similar names: .*SqueezeGate"):
        trace(GATE[:-1], [folder])
    codes = [line for text in synthesis.SOURCES.values() for line in text.splitlines() if "self." in line]
    texts = [path.read_text() for path in folder.rglob("*") if path.suffix in (".py", ".md", ".toml", ".json")]
    texts += [json.dumps(row) for row in open_folder(folder).rows("requests")]
    assert codes
    assert [line for line in codes if any(line.strip() in text for text in texts)] == []


def test_an_answer_is_graded_by_the_steps_alone(library: Path, request_row: dict[str, Any]) -> None:
    with Grader(against=[library], jobs=1) as grader:
        for step, code in [*ANSWERS.items(), (None, GOOD)]:
            grade = grader.grade(answer(code), [request_row])
            assert grade.failed == step, (step, grade)
            assert grade.passed == (STEPS if step is None else STEPS[: STEPS.index(step)])
            assert grade.score == len(grade.passed) / 10
            assert (grade.error is None) == (step is None)
        assert grader.grade("I cannot do that.", [request_row]).score == 0
        with ThreadPoolExecutor(1) as other:
            assert other.submit(grader.grade, answer(GOOD), [request_row]).result().score == 1
        with pytest.raises(UserError, match="pass rows that"):
            grader.grade(answer(GOOD), [{"spec": "{}"}])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("verifiers") is None, reason="verifiers 0.1.14 is not installed")
def test_the_evaluator_of_verifiers_runs_it(folder: Path, library: Path, tmp_path: Path) -> None:
    """Run it where `pip install verifiers==0.1.14` came after ours: it takes an older `datasets`."""
    place = tmp_path / "package"
    shutil.copytree(folder, place)

    def script(request: dict[str, Any], _: int) -> Any:
        wanted = request["messages"][1]["content"]
        return completion(answer(GOOD if "uses SqueezeGate" in wanted else ANSWERS["used"] or ""))

    arguments = json.dumps({"against": [str(library)]})
    with serving(script) as server:
        command = [sys.executable, "-c", "from verifiers.scripts.eval import main; main()", "lemur-networks"]
        command += ["-m", "scripted", "-b", server.url, "-k", "NO_KEY", "-n", "2", "-r", "1", "-a", arguments]
        command += ["-d", "-s", "-o", str(tmp_path / "results"), "--disable-env-server"]
        paths = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths, "NO_KEY": "x"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    (results,) = (tmp_path / "results").rglob("results.jsonl")
    rows = {
        json.loads(row["info"])["block"] if isinstance(row["info"], str) else row["info"]["block"]: row
        for row in map(json.loads, results.read_text().splitlines())
    }
    assert rows[GATE]["reward"] == 1.0
    other = next(row for block, row in rows.items() if block != GATE)
    assert 0 < other["reward"] < 1
    assert len(server.requests) == 2
