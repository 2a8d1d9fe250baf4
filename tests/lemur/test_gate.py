"""`lemur gate`: files, folders and ranges of commits, against a snapshot and among themselves."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_source
from lemur.desk.checks import (
    RULES,
    Refusal,
    Statistics,
    find_untrained,
    inspect_network,
    read_contribution,
    read_statistics,
)
from lemur.desk.gate import GateReport, build_json, build_sarif, build_table, gate
from lemur_core.files.errors import UserError
from tests.builders.commands import LEMUR, environment
from tests.builders.suites import read_files, read_table, table
from train.model.contract import lemur_digest

TEXTS = read_files(__file__, "gate.md")
UID = "0" * 32
STATISTICS = "ab/nn/stat/train/img-classification_cifar-10_acc_"
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
    return {f"{STATISTICS}{name}/1.json": json.dumps(trials)}


def found(report: GateReport) -> dict[str, list[str]]:
    return {file.path.rpartition("/")[2]: [finding.rule for finding in file.findings] for file in report.files}


@table(__file__, "gate.md", "Statistics", globals())
def test_statistics(folder: str, file: str, change: dict[str, Any], finding: str | None) -> None:
    trial = {name: value for name, value in {**TRIAL, **change}.items() if value is not None}
    names = {"mine": ("lr", "momentum")}
    path = f"ab/nn/stat/train/{folder}/{file}.json"
    findings = read_statistics(path, json.dumps([trial]).encode(), names.get).findings
    assert [one.rule for one in findings] == ["statistics"] * (finding is not None)
    assert all(one.message.startswith(finding or "?") for one in findings)


def test_statistics_without_trials_or_gaps() -> None:
    path = "stat/train/img-classification_cifar-10_acc_mine/1.json"
    for data in (b"[]", b"{}", b"[1]"):
        (finding,) = read_statistics(path, data, {"mine": ()}.get).findings
        assert finding.message == "not a list of trials, each an object"
    trial = {name: value for name, value in TRIAL.items() if name not in ("momentum", "transform")}
    (finding,) = read_statistics(path, json.dumps([trial]).encode(), {"mine": ("lr", "momentum")}.get).findings
    assert finding.message == "trial 1: lacks momentum, transform"
    files = trials_of({"a": [(0.5, 1), (0.6, 2), (0.7, 3)]})
    given = [file for path, file in files.items() if not path.endswith("2.json")]
    assert list(find_untrained(given, files.keys())) == []


@table(__file__, "gate.md", "Names", globals())
def test_names(name: str, finding: str | None) -> None:
    digest = lemur_digest(net())
    inspection = inspect_network((f"ab/nn/nn/{name.replace('DIGEST', digest)}.py", net().encode()))
    assert [one.message for one in inspection.findings] == ([finding.replace("DIGEST", digest)] if finding else [])
    assert (inspection.parameters, inspection.needed) == (("lr", "momentum", "shrink"),) * 2


def test_hyperparameters_of_a_dict_are_its_keys_and_one_with_a_default_is_not_needed() -> None:
    code = net().replace('{"lr", "momentum", "shrink"}', '{"lr": 0.1, "momentum": 0.9, "shrink": [1, 2]}')
    code = code.replace('prm["shrink"]', 'prm.get("shrink", 1)')
    network = inspect_network(("it.py", code.encode()))
    assert (network.parameters, network.needed) == (("lr", "momentum", "shrink"), ("lr", "momentum"))


def trials_of(rows: dict[str, list[tuple[float, int | None]]]) -> dict[str, Statistics]:
    """Statistics by path: of each network on CIFAR-10, accuracy and duration by epoch."""
    files = {}
    for name, epochs in rows.items():
        for epoch, (accuracy, duration) in enumerate(epochs, 1):
            path = f"stat/train/img-classification_cifar-10_acc_{name}/{epoch}.json"
            trial = {**TRIAL, "uid": lemur_digest(name), "accuracy": accuracy, "duration": duration}
            files[path] = read_statistics(path, json.dumps([trial]).encode(), lambda _name: ())
    return files


@table(__file__, "gate.md", "No training", globals())
def test_statistics_that_no_training_gives(
    rows: dict[str, list[tuple[float, int | None]]], missing: list[str], faults: dict[str, str]
) -> None:
    files = trials_of(rows)
    for path in missing:
        del files[f"stat/train/img-classification_cifar-10_acc_{path}.json"]
    yielded = find_untrained(files.values(), files.keys())
    found = {path.partition("_acc_")[2].removesuffix(".json"): fault for path, fault in yielded}
    assert found.keys() == faults.keys()
    for path, message in faults.items():
        assert found[path].startswith(message), found[path]


ARCH_UID = """import hashlib, re


def arch_uid(source):
    return hashlib.blake2b("".join(re.sub("#.*", "", source).split()).encode(), digest_size=16).hexdigest()
"""


def test_a_name_by_a_certificate(snapshot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ("".join(text.split()).encode() for text in (net(32), "x"))
    right, wrong = (f"edge-{hashlib.blake2b(text, digest_size=16).hexdigest()}" for text in texts)
    write(tmp_path, {f"ab/nn/nn/{right}.py": net(32), f"ab/nn/nn/{wrong}.py": TEXTS["OTHER"]})
    report = gate(["."], against=[snapshot], jobs=1)
    assert "name" not in report.coverage["refused"]
    assert any(
        note.startswith(f"ab/nn/nn/{min(right, wrong)}.py and 1 more: certificate, not checked")
        for note in report.notes
    )
    write(tmp_path, {"ab/nn/util/ArchUID.py": ARCH_UID, "ab/nn/nn/twin.py": f"{net()}# the same\n"})
    report = gate(["."], against=[snapshot], jobs=1)
    twin = next(file for file in report.files if file.path.endswith("twin.py"))
    said = "has the certificate of known: LEMUR's head would add its statistics to that network"
    assert twin.findings[-1] == Refusal("new", said)
    assert [name for name, rules in found(report).items() if "name" in rules] == [f"{wrong}.py"]
    assert not any("certificate" in note for note in report.notes)
    write(tmp_path, {"ab/nn/util/ArchUID.py": "def arch_uid(source): raise SystemExit"})
    assert any("certificate, not checked" in note for note in gate(["."], against=[snapshot], jobs=1).notes)


def test_what_a_file_alone_is_refused_for() -> None:
    token = "ghp_" + "q8Zt5Vw2Xy9LkPmNb3Rd7Fh1Jc6Gs4Ta0Ue2"
    code = f"# License: GPL-3.0-only\n{net()}\nKEY = '{token}'\n".replace(
        "def learn(self, train_data)", "def learn(self)"
    )
    findings = inspect_network(("it.py", code.encode())).findings
    learn, key = (code[: code.index(text)].count("\n") + 1 for text in ("def learn", "KEY"))
    assert [(one.rule, one.line) for one in findings] == [("contract", learn), ("secret", key), ("license", 1)]
    assert not any(token in one.message for one in findings)
    (finding,) = inspect_network(("it.py", b"class Net(:")).findings
    assert (finding.rule, finding.line) == ("contract", 1)
    (finding,) = inspect_network(("it.py", b"\xff")).findings
    assert finding.message == "invalid UTF-8 at byte 0"


def test_a_contribution(snapshot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nets = {"a-known": net(), "b-new": TEXTS["OTHER"], "c-near": TEXTS["OTHER"].replace("16, 7", "16, 5")}
    broken = TEXTS["OTHER"].replace("self.voice(", "self.mouth(").replace("amax", "amin")
    nets["d-broken"] = broken.replace("x", "image").replace("max", "x")
    nets["e-lacks"] = f"import einops\n{TEXTS['OTHER']}"
    write(tmp_path, {f"ab/nn/nn/{name}.py": code for name, code in nets.items()})
    write(tmp_path, {**statistics("b-new"), **statistics("c-near", accuracy=2), "ab/nn/api.py": "x = 1\n"})
    report = gate(["."], against=[snapshot], jobs=1)
    of_statistics = [file for file in report.files if file.kind == "statistics"]
    assert [file.passed for file in of_statistics] == [True, False]
    networks = {name[0]: rules for name, rules in found(report).items() if name.endswith(".py")}
    assert networks == {"a": ["new"], "b": [], "c": ["new"], "d": ["runs"], "e": ["new"]}
    first, _, third, fourth, _ = (file for file in report.files if file.kind == "network")
    assert first.findings[0].message.startswith("the same code, near by text, near by structure: known (text 1.000")
    assert third.findings[0].message.startswith(
        "near by text: ab/nn/nn/b-new.py, of these files (text 1.000, structure "
    )
    assert fourth.findings[0].message.startswith("does not run: forward_failed: AttributeError: ")
    assert report.coverage == {
        "networks": 5, "passed": 1, "refused": {"new": 3, "runs": 1, "statistics": 1}, "statistics": 2, "without_statistics": 3
    }  # fmt: skip
    assert report.notes == (
        f"{snapshot}: holds no graphs; its networks are compared by text and structure alone;"
        " `lemur curate --graph all` makes a snapshot that holds them",
        "1 network not run, for want of einops, which LEMUR has: --runtime lemur-nets runs them",
        "neither networks nor statistics, and not checked: 1 file",
    )

    lines = list(build_table(report))
    assert lines[0] == "FAIL  ab/nn/nn/a-known.py"
    assert lines[2].startswith("pass  ab/nn/nn/b-new.py")
    assert "7 files: 2 pass, 5 refused" in lines
    facts = json.loads(json.dumps(build_json(report)))
    assert [file["passed"] for file in facts["files"]] == [file.passed for file in report.files]
    run = json.loads(json.dumps(build_sarif(report)))["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(RULES)
    assert [result["ruleId"] for result in run["results"]] == ["new", "new", "runs", "new", "statistics"]
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
        assert contribution.others == {"README.md"}
        assert contribution.names == {"old", "mine"}
    assert read_contribution(["ab/nn/nn/mine.py"]).networks == {"ab/nn/nn/mine.py": b"later\n"}
    with pytest.raises(UserError, match=r"^HEAD\.\.no-such: "):
        read_contribution(["HEAD..no-such"])


def stated(accuracy: str) -> bytes:
    trial = {name: value for name, value in TRIAL.items() if name not in ("accuracy", "duration")}
    return f'[{{"accuracy": {accuracy}, {json.dumps(trial)[1:]}]'.encode()


def test_what_is_not_plain(snapshot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"ab/nn/nn/mine.py": "x = 1\n", **statistics("mine")})
    expected = {"ab/nn/nn/mine.py": "there is no class Net"}
    rows = read_table(__file__, "gate.md", "Not plain", globals())
    for number, (name, (content, finding)) in enumerate(rows.items(), 1):
        path = f"ab/nn/nn/{number}.py" if "network" in name else f"{STATISTICS}mine/{number}.json"
        (tmp_path / path).write_bytes(content)
        expected[path] = finding
    files = gate(["."], against=[snapshot], jobs=1).files
    findings = {file.path: [one.message for one in file.findings] for file in files}
    assert findings.keys() == expected.keys()
    for path, start in expected.items():
        (message,) = findings[path]
        assert message.startswith(start)
        assert message.isprintable()


def make_elsewhere(folder: Path, path: str, target: str | None) -> None:
    """Make and stage a link; or, without a target, a submodule that was not fetched."""
    made = folder / path
    made.parent.mkdir(parents=True, exist_ok=True)
    if target is not None:
        made.symlink_to(target)
        git(folder, "add", path)
        return
    made.mkdir()
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{path}")
    git(folder, "config", "--file", ".gitmodules", f"submodule.{path}.path", path)
    git(folder, "config", "--file", ".gitmodules", f"submodule.{path}.ignore", "all")


def test_links_and_submodules_are_refused(repository: Path, snapshot: str) -> None:
    rows = read_table(__file__, "gate.md", "Elsewhere", globals())
    (repository / "ab/nn/api.py").write_text("x = 1\n")
    for path, (target, _) in rows.items():
        make_elsewhere(repository, path, target)
    git(repository, "add", ".gitmodules", "ab/nn/api.py")
    git(repository, "commit", "-m", "three")
    refused = {path for path, (_, refused) in rows.items() if refused}
    assert read_contribution(["HEAD~1..HEAD"]).links.keys() == refused
    links = {path for path in refused if rows[path][0] is not None}
    for paths in (["."], sorted(links)):
        assert read_contribution(paths).links.keys() == links
    report = gate(["HEAD~1..HEAD"], against=[snapshot], jobs=1)
    assert {(file.path, *(one.rule for one in file.findings)) for file in report.files} == {
        (path, "file") for path in refused
    }


@pytest.mark.parametrize("path", ["ab", "ab/nn", "ab/nn/nn", "ab/nn/stat", "ab/nn/stat/train"])
def test_a_folder_that_became_a_link(repository: Path, path: str) -> None:
    shutil.move(repository / path, repository / "moved")
    (repository / path).symlink_to(os.path.relpath(repository / "moved", (repository / path).parent))
    git(repository, "add", "--all")
    git(repository, "commit", "-m", "three")
    for given in ("HEAD~1..HEAD", path, "."):
        assert read_contribution([given]).links.keys() == {path}


def test_nothing_to_check(repository: Path, snapshot: str) -> None:
    write(repository, {"docs/it.md": "one\n", "ab/nn/api.py": "x = 1\n", "ab/nn/stat/run/it/gpu.json": "{}"})
    (repository / "empty").mkdir()
    git(repository, "add", "docs", "ab/nn/api.py", "ab/nn/stat/run")
    git(repository, "commit", "-m", "three")
    for given in (["HEAD~1..HEAD"], ["README.md"], ["docs", "empty", "ab/nn/api.py"], ["HEAD..HEAD", "ab/nn/stat/run"]):
        report = gate(given, against=[snapshot], jobs=1)
        assert (report.passed, report.files, list(build_table(report))) == (True, (), list(report.notes))
        (note,) = report.notes
        assert re.fullmatch(r"nothing to check: no networks .* or statistics .* among [0-9] files?", note)
    # A contribution must not bring what is checked instead of its range, and nothing else passes unread.
    write(repository, {"0..HEAD": "", "HEAD~2..HEAD": ""})
    for given in (["missing"], ["README.md", "missing.py"], ["0..HEAD"], ["HEAD..missing"]):
        with pytest.raises(UserError) as refusal:
            read_contribution(given)
    assert str(refusal.value).endswith("; if it is a file or folder, write ./HEAD..missing")
    assert "ab/nn/nn/mine.py" in read_contribution(["HEAD~2..HEAD"]).networks
    with pytest.raises(UserError, match=r"no-such: no such folder; --against takes"):
        gate(["README.md"], against=["no-such"])


def test_names_are_shown_on_one_line(snapshot: str, tmp_path: Path, lemur_here: Callable[..., Any]) -> None:
    names = {
        "a b ##[add-matcher]m.json.py": "a%20b%20%23%23%5Badd-matcher%5Dm.json.py",
        "b\n::error::x.py": "b%0A%3A%3Aerror%3A%3Ax.py",
        "c:%0A?\t\x1b[31m.py": "c%3A%250A%3F%09%1B%5B31m.py",
        "d\u202e\u2028\x85é.py": "d%E2%80%AE%E2%80%A8%C2%85%C3%A9.py",
        os.fsdecode(b"e\xff.py"): "e%FF.py",
    }
    write(tmp_path / "n", dict.fromkeys(names, "x = 1\n"))
    write(tmp_path / "n", {"stat/a\nb_c_d_e/1.json": "[]"})
    done = lemur_here("gate", "n", "--against", snapshot, "--sarif", "found.sarif", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout.removesuffix("\n").replace("\n", "").isprintable()
    assert [line for line in done.stdout.splitlines() if line.startswith("FAIL")] == [
        "FAIL  n/a b ##[add-matcher]m.json.py",
        r"FAIL  n/b\n::error::x.py",
        r"FAIL  n/c:%0A?\t\x1b[31m.py",
        r"FAIL  n/d\u202e\u2028\x85é.py",
        r"FAIL  n/e\udcff.py",
        r"FAIL  n/stat/a\nb_c_d_e/1.json",
    ]
    results = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
    addresses = [one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in results]
    assert addresses[:5] == [f"n/{address}" for address in names.values()]
    assert all(one["message"]["text"].isprintable() for one in results)
    as_json = lemur_here("gate", "n", "--against", snapshot, "--json", cwd=tmp_path).stdout
    assert as_json.replace("\n", "").isprintable()
    assert r'"path": "n/b\n::error::x.py"' in as_json


# The hook of pre-commit and the action: the commands that they hold run here, on a repository made for it.

ROOT = Path(__file__).parents[2]


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def search_path() -> str:
    return f"{LEMUR.parent}{os.pathsep}{os.environ['PATH']}"


def test_the_hook_takes_networks_and_statistics() -> None:
    (hook,) = read_yaml(".pre-commit-hooks.yaml")
    taken = [*statistics("mine"), "ab/nn/nn/mine.py", "ab/nn/nn/sub", "ab/nn/nn", "ab/nn/stat/train", "ab/nn", "ab"]
    left = ["ab/nn/api.py", "ab/nn/nn.py", "README.md", "x/ab/nn/nn/mine.py", "abc/nn/nn/mine.py"]
    for path in (*taken, *left):
        assert bool(re.search(hook["files"], path)) is (path in taken), path
    assert hook["types"] == []  # of `file`, the default, links and submodules are not


@pytest.mark.slow
def test_the_hook_runs(repository: Path, snapshot: str) -> None:
    (hook,) = read_yaml(".pre-commit-hooks.yaml")
    assert hook["args"][0] == "--against"
    write(repository, {"ab/nn/nn/mine.py": TEXTS["OTHER"]})
    command = [ROOT / hook["entry"], "--against", snapshot, "ab/nn/nn/mine.py"]
    assert subprocess.run(command, cwd=repository, env=environment(PATH=search_path()), check=False).returncode == 0


BACKEND = """
import zipfile

def prepare_metadata_for_build_wheel(folder, settings=None):
    import os
    os.mkdir(f"{folder}/it-1.dist-info")
    open(f"{folder}/it-1.dist-info/METADATA", "w").write("Metadata-Version: 2.1\\nName: it\\nVersion: 1\\n")
    return "it-1.dist-info"

def build_wheel(folder, settings=None, metadata=None):
    with zipfile.ZipFile(f"{folder}/it-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("it-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: it\\nVersion: 1\\n")
        wheel.writestr("it-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("it-1.dist-info/entry_points.txt", "[console_scripts]\\nlemur = it:main\\n")
        wheel.writestr("it.py", "def main():\\n    import sys\\n    print('given:', *sys.argv[1:])\\n")
        wheel.writestr("it-1.dist-info/RECORD", "")
    return "it-1-py3-none-any.whl"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that pip installs without a network, with the hook of this one, and a `lemur` that prints its words."""
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    hook = (ROOT / ".ci/gate-hook").read_text()
    files = {"pyproject.toml": system, "backend.py": BACKEND, "requirements-light.txt": "", ".ci/gate-hook": hook}
    write(tmp_path / "project", files)
    return tmp_path / "project"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A working folder whose files would be imported in place of installed modules."""
    modules = ("pip", "venv", "lemur", "lemur_core", "torch", "json", "secrets", "ensurepip", "multiprocessing", "site")
    files = {f"{name}.py": "open(__file__ + '.ran', 'w').write('it ran')\n" for name in (*modules, "sitecustomize")}
    write(tmp_path / "checkout", {**files, "pip/__init__.py": files["pip.py"], "pip/__main__.py": files["pip.py"]})
    return tmp_path / "checkout"


def run_step(name: str, cwd: Path, **given: str) -> subprocess.CompletedProcess[str]:
    (step,) = (step for step in read_yaml("action.yml")["runs"]["steps"] if step.get("name") == name)
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    changed = environment(PATH=search_path(), PYTHONPATH=str(cwd), **given)
    return subprocess.run(command, cwd=cwd, env=changed, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_action_installs_and_imports_nothing_of_the_checkout(project: Path, checkout: Path) -> None:
    done = run_step("Install", checkout, ACTION=str(project), RUN_NETWORKS="true", PIP_NO_INDEX="1", PIP_DRY_RUN="1")
    assert done.returncode == 0, done.stderr
    assert not list(checkout.rglob("*.ran"))


@pytest.mark.slow
def test_the_hook_sets_up_and_imports_nothing_of_the_checkout(project: Path, checkout: Path) -> None:
    command = ["sh", str(project / ".ci/gate-hook"), "--against", "it"]
    programs = project / "programs"  # without a lemur
    programs.mkdir()
    (programs / "python3").symlink_to(os.path.realpath(sys.executable))
    changed = environment(PATH=f"{programs}:/usr/bin:/bin", PIP_NO_INDEX="1")
    done = subprocess.run(command, cwd=checkout, env=changed, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "given: gate --against it\n"), done.stderr
    assert not list(checkout.rglob("*.ran"))


@pytest.mark.slow
def test_the_action_checks_and_reports(
    repository: Path, checkout: Path, snapshot: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    action = read_yaml("action.yml")
    steps = {step.get("name", step.get("uses")): step for step in action["runs"]["steps"]}
    assert action["runs"]["using"] == "composite"
    assert steps["actions/cache@v4"]["with"]["path"] == "~/.cache/lemur-curator"
    assert action["outputs"]["sarif"]["value"] == "${{ steps.gate.outputs.sarif }}"
    # What an expression would put into a script is never part of its text: it comes from the environment.
    assert all("${{" not in step.get("run", "") for step in steps.values())
    assert steps["Check"]["env"] == {"PATHS": "${{ inputs.paths }}", "AGAINST": "${{ inputs.against }}"}
    assert set(action["inputs"]) == {"paths", "against", "python-version", "run-networks"}
    for module in checkout.iterdir():
        module.rename(repository / module.name)
    hostile = ["ab/nn/nn/b\n::error::x.py", "new/##[add-matcher]it.json.py", "new/-c.py"]
    write(repository, dict.fromkeys(hostile, "x = 1\n"))
    scratch = tmp_path_factory.mktemp("runner")
    files = {name: str(scratch / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    paths = "HEAD~1..HEAD\n\n  README.md\tHEAD~1..HEAD \nnew ab/nn/nn\n"
    done = run_step("Check", repository, PATHS=paths, AGAINST=snapshot, RUNNER_TEMP=str(scratch), **files)
    assert done.returncode == 3, done.stdout
    assert not list(repository.rglob("*.ran"))
    stopped, *table, resumed = done.stdout.splitlines()
    token = stopped.removeprefix("::stop-commands::")
    assert (resumed, done.stderr) == (f"::{token}::", "")
    assert len(token) >= 32
    summary = Path(files["GITHUB_STEP_SUMMARY"]).read_text()
    assert summary.startswith("### lemur gate\n\n```text\n")
    assert "\n".join(table) in summary
    assert token not in summary
    checked = {line.split()[1] for line in table if line.startswith(("FAIL", "pass"))}
    hostile[0] = r"ab/nn/nn/b\n::error::x.py"
    assert checked == {"ab/nn/nn/mine.py", "ab/nn/nn/old.py", *hostile}
    assert Path(files["GITHUB_OUTPUT"]).read_text() == f"sarif={scratch}/lemur-gate.sarif\n"
    assert '"ruleId": "new"' in (scratch / "lemur-gate.sarif").read_text()


@pytest.mark.slow
def test_the_action_shows_errors_while_commands_are_stopped(repository: Path, snapshot: str, tmp_path: Path) -> None:
    files = {name: str(tmp_path / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    done = run_step("Check", repository, PATHS="::error::it", AGAINST=snapshot, RUNNER_TEMP=str(tmp_path), **files)
    stopped, *shown, resumed = done.stdout.splitlines()
    assert (done.returncode, done.stderr, len(shown)) == (1, "", 1)
    assert shown[0].startswith("lemur: ::error::it: no such file or folder")
    assert resumed == f"::{stopped.removeprefix('::stop-commands::')}::"
