"""`lemur gate`: files, folders and ranges of commits, against a snapshot and among themselves."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_source
from lemur.gate.checks import RULES, Refusal, inspect_network, inspect_statistics, read_contribution, read_trials
from lemur.gate.gate import GateReport, build_json, build_sarif, build_table, differ_by_one_number, gate
from lemur_core.files.errors import UserError
from tests.builders.commands import LEMUR, environment
from tests.builders.suites import read_files, table
from train.model.contract import lemur_digest

TEXTS = read_files(__file__, "gate.md")
UID = "0" * 32
TRIAL = {
    "accuracy": 0.5,
    "duration": 10**9,
    "uid": UID,
    "batch": 8,
    "transform": "norm_32",
    "lr": 0.01,
    "momentum": 0.9,
}


def net(width: int = 8, act: str = "tanh") -> str:
    return TEXTS["NET"].replace("WIDTH", str(width)).replace("ACT", act)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A snapshot without graphs, of one network."""
    folder = tmp_path_factory.mktemp("gate")
    row = {"nn": "known", "nn_code": net(), "task": "img-classification", "dataset": "cifar-10", "metric": "acc"}
    (folder / "rows.jsonl").write_text(json.dumps({**row, "epoch": 1, "accuracy": 0.9}) + "\n")
    curate(open_source(str(folder / "rows.jsonl")), folder / "snapshot", CurateOptions(graph="off"), jobs=1)
    return str(folder / "snapshot")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def statistics(name: str, **changes: Any) -> dict[str, str]:
    trials = [{**TRIAL, "shrink": 0.7, **changes}]
    return {f"ab/nn/stat/train/img-classification_cifar-10_acc_{name}/1.json": json.dumps(trials)}


def found(report: GateReport) -> dict[str, list[str]]:
    return {file.path.rpartition("/")[2]: [finding.rule for finding in file.findings] for file in report.files}


def inspect(supported: Callable[[str], tuple[str, ...] | None], path: str, data: bytes) -> tuple[Refusal, ...]:
    return inspect_statistics(supported, path, data, read_trials(data))


@table(__file__, "gate.md", "Statistics", globals())
def test_statistics(folder: str, file: str, change: dict[str, Any], finding: str | None) -> None:
    trial = {name: value for name, value in {**TRIAL, **change}.items() if value is not None}
    names = {"mine": ("lr", "momentum")}
    findings = inspect(names.get, f"ab/nn/stat/train/{folder}/{file}.json", json.dumps([trial]).encode())
    assert [one.rule for one in findings] == ["statistics"] * (finding is not None)
    assert all(one.message.startswith(finding or "?") for one in findings)


def test_statistics_without_trials() -> None:
    path = "stat/train/img-classification_cifar-10_acc_mine/1.json"
    for data in (b"[]", b"{}", b"[1]"):
        (finding,) = inspect({"mine": ()}.get, path, data)
        assert finding.message == "not a list of trials, each an object"
    (finding,) = inspect({"mine": ()}.get, path, b"[{")
    assert finding.message.startswith("not JSON: ")
    trial = {name: value for name, value in TRIAL.items() if name not in ("momentum", "transform")}
    (finding,) = inspect({"mine": ("lr", "momentum")}.get, path, json.dumps([trial]).encode())
    assert finding.message == "trial 1: lacks momentum, transform"


@table(__file__, "gate.md", "Names", globals())
def test_names(name: str, finding: str | None) -> None:
    digest = lemur_digest(net())
    inspection = inspect_network(("abstract",), (f"ab/nn/nn/{name.replace('DIGEST', digest)}.py", net().encode()))
    assert [one.message for one in inspection.findings] == ([finding.replace("DIGEST", digest)] if finding else [])
    assert inspection.parameters == ("lr", "momentum", "shrink")


@table(__file__, "gate.md", "One number", globals())
def test_one_number(one: str, other: str, equal_otherwise: bool) -> None:
    assert differ_by_one_number(one, other) is equal_otherwise
    assert differ_by_one_number(other, one) is equal_otherwise


def test_what_a_file_alone_is_refused_for() -> None:
    token = "ghp_" + "q8Zt5Vw2Xy9LkPmNb3Rd7Fh1Jc6Gs4Ta0Ue2"
    code = f"# License: GPL-3.0-only\n{net()}\nKEY = '{token}'\n".replace(
        "def learn(self, train_data)", "def learn(self)"
    )
    findings = inspect_network(("abstract",), ("it.py", code.encode())).findings
    learn, key = (code[: code.index(text)].count("\n") + 1 for text in ("def learn", "KEY"))
    assert [(one.rule, one.line) for one in findings] == [("contract", learn), ("secret", key), ("license", 1)]
    assert not any(token in one.message for one in findings)
    (finding,) = inspect_network(("abstract",), ("it.py", b"class Net(:")).findings
    assert (finding.rule, finding.line) == ("contract", 1)
    (finding,) = inspect_network(("abstract",), ("it.py", b"\xff")).findings
    assert finding.message == "invalid UTF-8 at byte 0"


def test_a_contribution(snapshot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nets = {"a-known": net(), "b-new": TEXTS["OTHER"], "c-near": TEXTS["OTHER"].replace("16, 7", "16, 5")}
    broken = TEXTS["OTHER"].replace("self.voice(", "self.mouth(").replace("amax", "amin")
    nets["d-broken"] = broken.replace("x", "image").replace("max", "x")
    write(tmp_path, {f"ab/nn/nn/{name}.py": code for name, code in nets.items()})
    write(tmp_path, {**statistics("b-new"), **statistics("c-near", accuracy=2), "ab/nn/api.py": "x = 1\n"})
    report = gate(["."], against=[snapshot], jobs=1)
    of_statistics = [file for file in report.files if file.kind == "statistics"]
    assert [file.passed for file in of_statistics] == [True, False]
    networks = {name: rules for name, rules in found(report).items() if name.endswith(".py")}
    assert networks == {"a-known.py": ["new"], "b-new.py": [], "c-near.py": ["new"], "d-broken.py": ["runs"]}
    first, _, third, fourth = (file for file in report.files if file.kind == "network")
    assert first.findings[0].message.startswith("the same code, near by text, near by structure: known (text 1.000")
    assert third.findings[0].message == "near by text: ab/nn/nn/b-new.py, of these files"
    assert third.one_number
    assert fourth.findings[0].message.startswith("does not run: forward_failed: AttributeError: ")
    assert report.coverage["networks"] == 4
    assert report.coverage["one_number"] == 1
    assert report.coverage["graphs"] == 3
    assert report.coverage["without_statistics"] == 2
    assert report.notes == (
        f"{snapshot}: holds no graphs; its networks are compared by text and structure alone;"
        " `lemur curate --graph all` makes a snapshot that holds them",
        "1 files are neither networks nor statistics, and were not checked",
    )

    lines = list(build_table(report))
    assert lines[0] == "FAIL  ab/nn/nn/a-known.py"
    assert lines[2].startswith("pass  ab/nn/nn/b-new.py")
    assert "6 files: 2 pass, 4 refused" in lines
    facts = json.loads(json.dumps(build_json(report)))
    assert [file["passed"] for file in facts["files"]] == [file.passed for file in report.files]
    run = json.loads(json.dumps(build_sarif(report)))["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(RULES)
    assert [result["ruleId"] for result in run["results"]] == ["new", "new", "runs", "statistics"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "ab/nn/nn/a-known.py"}, "region": {"startLine": 1}}


def git(folder: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=it", "-c", "user.email=it@it.it", "-c", "init.defaultBranch=main", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """LEMUR's tree in two commits: the first holds one network, the second adds one with statistics."""
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init")
    write(tmp_path, {"ab/nn/nn/old.py": net(), "ab/nn/nn/gone.py": net(16), "README.md": "one\n"})
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    write(tmp_path, {"ab/nn/nn/mine.py": TEXTS["OTHER"], **statistics("old"), "README.md": "two\n"})
    git(tmp_path, "rm", "ab/nn/nn/gone.py")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "two")
    write(tmp_path, {"ab/nn/nn/mine.py": "later\n"})
    return tmp_path


def test_a_range_of_commits(repository: Path) -> None:
    for named in ("HEAD~1..HEAD", "HEAD~1..", "HEAD~1...HEAD"):
        contribution = read_contribution([named])
        assert {path: data.decode() for path, data in contribution.networks.items()} == {
            "ab/nn/nn/mine.py": TEXTS["OTHER"]
        }
        assert list(contribution.statistics) == list(statistics("old"))
        assert contribution.others == 1
        assert contribution.names == {"old", "mine"}
    assert read_contribution(["ab/nn/nn/mine.py"]).networks == {"ab/nn/nn/mine.py": b"later\n"}
    with pytest.raises(UserError, match=r"^HEAD\.\.no-such: "):
        read_contribution(["HEAD..no-such"])
    with pytest.raises(UserError, match=r"^README\.md: no networks "):
        read_contribution(["README.md"])


def test_exit_codes(repository: Path, snapshot: str, lemur_here: Callable[..., Any]) -> None:
    passes = lemur_here(
        "gate", "HEAD~1..HEAD", "--against", snapshot, "--sarif", "new/folder/found.sarif", cwd=repository
    )
    assert (passes.returncode, passes.stdout.splitlines()[0][:22]) == (0, "pass  ab/nn/nn/mine.py")
    assert json.loads((repository / "new/folder/found.sarif").read_text())["runs"][0]["results"] == []
    refused = lemur_here("gate", "ab/nn/nn/old.py", "--against", snapshot, "--json", cwd=repository)
    assert refused.returncode == 3
    assert json.loads(refused.stdout)["coverage"]["refused"] == {"new": 1}


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once(snapshot: str, tmp_path: Path) -> None:
    endless = TEXTS["OTHER"].replace(
        "return self.voice", "while True:\n            x = x + 1\n        return self.voice"
    )
    write(tmp_path, {"it.py": endless})
    process = subprocess.Popen(
        [LEMUR, "gate", "it.py", "--against", snapshot],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    while not process.stderr.readline().startswith("files: 1 networks in "):
        pass
    time.sleep(10)  # the sandbox starts, and the network runs
    os.killpg(process.pid, signal.SIGINT)
    asked = time.monotonic()
    out, told = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert told.splitlines()[-1].startswith("lemur: interrupted; ")
    assert time.monotonic() - asked < 4, "waited for the network"


# The hook of pre-commit and the action: the commands that they hold run here, on a repository made for it.

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
