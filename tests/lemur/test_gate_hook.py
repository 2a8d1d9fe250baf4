"""The hook of pre-commit and the action: the commands that they hold run here, on a repository made for it."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.commands import LEMUR, environment
from tests.lemur.test_gate import TEXTS, git, net, repository, snapshot, statistics, write

__all__ = ["repository", "snapshot"]  # fixtures

ROOT = Path(__file__).parents[2]


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def search_path() -> str:
    return f"{LEMUR.parent}{os.pathsep}{os.environ['PATH']}"


def test_the_hook_takes_networks_and_statistics() -> None:
    (hook,) = read_yaml(".pre-commit-hooks.yaml")
    taken = [*statistics("mine"), "ab/nn/nn/mine.py"]
    left = ["ab/nn/nn/__init__.py", "ab/nn/api.py", "ab/nn/stat/run/it.json", "README.md", "x/ab/nn/nn/mine.py"]
    for path in (*taken, *left):
        chosen = re.search(hook["files"], path) and not re.search(hook["exclude"], path)
        assert bool(chosen) is (path in taken), path


def test_the_hook_runs(repository: Path, snapshot: str) -> None:
    """As pre-commit runs it: its words, the arguments of the configuration, then the files."""
    (hook,) = read_yaml(".pre-commit-hooks.yaml")
    assert hook["args"][0] == "--against"
    write(repository, {"ab/nn/nn/mine.py": TEXTS["OTHER"]})
    for path, status in (("ab/nn/nn/mine.py", 0), ("ab/nn/nn/old.py", 3)):
        command = [ROOT / hook["entry"], "--against", snapshot, path]
        done = subprocess.run(command, cwd=repository, env=environment(PATH=search_path()), check=False)
        assert done.returncode == status


@pytest.mark.parametrize("refused", [False, True])
def test_the_action_checks_and_reports(repository: Path, snapshot: str, tmp_path: Path, refused: bool) -> None:
    action = read_yaml("action.yml")
    steps = {step.get("name", step.get("uses")): step for step in action["runs"]["steps"]}
    assert action["runs"]["using"] == "composite"
    assert steps["actions/cache@v4"]["with"]["path"] == "~/.cache/lemur-curator"
    assert action["outputs"]["sarif"]["value"] == "${{ steps.gate.outputs.sarif }}"
    if refused:
        write(repository, {"ab/nn/nn/mine.py": net()})
        git(repository, "add", ".")
        git(repository, "commit", "-m", "three")
    check = steps["Check"]
    # What an expression would put into a script is never part of its text: it comes from the environment.
    assert all("${{" not in step.get("run", "") for step in steps.values())
    assert check["env"] == {"PATHS": "${{ inputs.paths }}", "AGAINST": "${{ inputs.against }}"}
    assert set(action["inputs"]) == {"paths", "against", "python-version", "run-networks"}
    scratch = tmp_path.parent / f"{tmp_path.name}-runner"
    scratch.mkdir()
    given = {"PATHS": "HEAD~1..HEAD", "AGAINST": snapshot, "RUNNER_TEMP": str(scratch), "PATH": search_path()}
    files = {name: str(scratch / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", check["run"]],
        cwd=repository, env=environment(**given, **files), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == (3 if refused else 0), done.stderr
    summary = Path(files["GITHUB_STEP_SUMMARY"]).read_text()
    assert summary.startswith("### lemur gate\n\n```text\n")
    assert done.stdout in summary
    assert f"{'FAIL' if refused else 'pass'}  ab/nn/nn/mine.py" in summary
    assert Path(files["GITHUB_OUTPUT"]).read_text() == f"sarif={scratch}/lemur-gate.sarif\n"
    assert ('"ruleId": "new"' in (scratch / "lemur-gate.sarif").read_text()) is refused
