"""Without PyTorch: what compares, reads and checks works; all else says in one line what to install."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_source
from tests.builders import extractions, synthesis
from tests.builders.commands import environment
from tests.builders.suites import read_table
from tests.test_environments import make_environment, make_row, write_code

ROOT = Path(__file__).parents[1]
LIGHT = [
    Requirement(line)
    for line in (ROOT / "requirements-light.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
PLAIN = write_code(8, "torch.relu")
NEAR = PLAIN.replace("lr=prm", "weight_decay=0.1, lr=prm")
CODES = {"plain": PLAIN, "near": NEAR, "other": synthesis.varied_network(1093)}
_ABSENT = "torch is not installed here; pip install numpy torch torchvision"
#: Commands by what they need, with the line that they end with.
REFUSED = read_table(__file__, "without_torch.md", "Refused", globals())

#: Commands that work, below a folder of networks, a snapshot of them that the first one makes, and an extraction.
DONE = """curate rows.jsonl --out snapshot --license MIT
verify snapshot --json
verify full --json
verify blocks --json
list snapshot --json
list blocks --json
open snapshot --no-browser
show plain --in snapshot
show near --in snapshot
publish snapshot --repo-id a/b --dry-run
novel near.py --against snapshot --json
gate new --against snapshot
gate near.py --against snapshot""".splitlines()

#: Many commands in one process: code, output and errors of each.
SCRIPT = """
import contextlib, io, json, sys, lemur
done = {}
for command in json.load(sys.stdin):
    sys.argv, (out, err) = ["lemur", *command.split()], (io.StringIO(), io.StringIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            lemur.main()
        except SystemExit as end:
            done[command] = [end.code or 0, out.getvalue(), err.getvalue()]
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("made")
    rows = "".join(make_row(name, code) for name, code in CODES.items())
    (base / "rows.jsonl").write_text(rows, encoding="utf-8")
    for name, code in CODES.items():
        (base / f"{name}.py").write_text(code, encoding="utf-8")
    (base / "new").mkdir()
    (base / "new" / "other.py").write_text(synthesis.varied_network(2186), encoding="utf-8")
    extractions.write(base / "blocks", extractions.results([source := extractions.source(base)]), [source])
    curate(open_source(str(base / "rows.jsonl")), base / "full", CurateOptions(graph="off", license="MIT"))
    return base


@pytest.fixture(scope="module")
def done(folder: Path, secret_rules: Path) -> dict[str, Any]:
    """What the commands did in an environment of `requirements-light.txt`: links to what is installed here."""
    python = make_environment(folder / "light", [need.name for need in LIGHT], {"torch", "torchvision", "triton"})
    assert subprocess.run([python, "-c", "import torch"], check=False, capture_output=True).returncode == 1
    shutil.copytree(secret_rules, folder / "cache" / "secrets")
    ended = subprocess.run(
        [python, "-P", "-c", SCRIPT], cwd=folder, capture_output=True, text=True, check=False,
        input=json.dumps([*DONE, *REFUSED]), env=environment(LEMUR_CURATOR_CACHE=str(folder / "cache")),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def test_the_light_requirements_are_ours() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {str(need) for need in LIGHT} <= {str(Requirement(text)) for text in project["dependencies"]}
    assert not {"torch", "torchvision"} & {need.name for need in LIGHT}


def test_folders_are_made_read_checked_and_published(folder: Path, done: dict[str, Any]) -> None:
    """Of the tables of a snapshot, none differs from those of an environment with PyTorch and --graph off."""
    known = ("novel near.py", "gate near.py")
    assert {name: done[name] for name in DONE if done[name][0] != 3 * name.startswith(known)} == {}
    assert f"graphs are not compared: {_ABSENT}" in done[DONE[0]][2]
    tables = sorted(path.relative_to(folder / "full") for path in (folder / "full").rglob("*.parquet"))
    assert len(tables) >= 6
    for table in tables:
        assert (folder / "snapshot" / table).read_bytes() == (folder / "full" / table).read_bytes(), table
    stages = pq.read_table(folder / "snapshot" / "decisions.parquet").column("stage").to_pylist()
    assert stages.count("lexical") == 1
    for kind, checks in (("snapshot", 12), ("full", 12), ("blocks", 9)):
        assert len(json.loads(done[f"verify {kind} --json"][1])) >= checks
    assert all(len(done[name][1]) > 100 for name in DONE if name.startswith("list"))
    notes = json.loads(done["novel near.py --against snapshot --json"][1])["notes"]
    assert notes == [f"no network was run, and no graphs are compared: {_ABSENT}"]
    for name in DONE[-2:]:
        assert f"note: no network was run, and no graphs are compared: {_ABSENT}" in done[name][1]


@pytest.mark.parametrize("command", REFUSED)
def test_what_needs_torch_says_so_in_one_line(command: str, done: dict[str, Any]) -> None:
    code, said, errors = done[command]
    assert code == 1, said
    assert re.fullmatch(REFUSED[command], errors.splitlines()[-1])
    assert "Traceback" not in errors


def test_they_do_not_import_torch_where_it_is_installed(folder: Path) -> None:
    code = (
        "import sys, pathlib, curate, lemur.folders as folders; folder = pathlib.Path(sys.argv[1])\n"
        "folders.verify_folder(folder), folders.show('plain', [folder]), folders.list_items(folder)\n"
        "curate.Snapshot(folder).novelty(folder.with_name('near.py').read_text(), graph=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-P", "-c", code, folder / "full"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
