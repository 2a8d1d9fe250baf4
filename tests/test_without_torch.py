"""Without PyTorch: what compares, reads and checks works; all else says in one line what to install."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement

from tests.builders import extractions, synthesis
from tests.builders.commands import LEMUR, environment
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

Lemur = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def lemur(tmp_path_factory: pytest.TempPathFactory) -> Lemur:
    """The command in an environment of `requirements-light.txt`: links to what is installed here."""
    base = tmp_path_factory.mktemp("light")
    left_out = {"torch", "torchvision", "triton"}
    python = make_environment(base / "environment", [need.name for need in LIGHT], left_out)

    def run(*arguments: object, full: bool = False) -> subprocess.CompletedProcess[str]:
        command = [LEMUR] if full else [python, "-P", "-c", "import lemur; lemur.main()"]
        return subprocess.run(
            [*command, *map(str, arguments)], cwd=base, capture_output=True, text=True, check=False,
            env=environment(LEMUR_CURATOR_CACHE=str(base / "cache")),
        )  # fmt: skip

    assert subprocess.run([python, "-c", "import torch"], check=False, capture_output=True).returncode == 1
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, lemur: Lemur) -> Path:
    """Networks, a snapshot of them that was created without PyTorch, and an extraction."""
    base = tmp_path_factory.mktemp("made")
    rows = "".join(make_row(name, code) for name, code in CODES.items())
    (base / "rows.jsonl").write_text(rows, encoding="utf-8")
    for name, code in CODES.items():
        (base / f"{name}.py").write_text(code, encoding="utf-8")
    (base / "new").mkdir()
    (base / "new" / "other.py").write_text(synthesis.varied_network(2186), encoding="utf-8")
    made = lemur("curate", base / "rows.jsonl", "--out", base / "snapshot", "--license", "MIT")
    assert made.returncode == 0, made.stderr
    assert f"graphs are not compared: {_ABSENT}" in made.stderr
    extractions.write(base / "blocks", extractions.results([source := extractions.source(base)]), [source])
    return base


def test_the_light_requirements_are_ours() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["dependencies"]
    assert {str(need) for need in LIGHT} <= {str(Requirement(text)) for text in declared}
    assert not {"torch", "torchvision"} & {need.name for need in LIGHT}


def test_curation_by_text_gives_the_same_tables(folder: Path, lemur: Lemur) -> None:
    """Only what names the stage that was left out differs from an environment with PyTorch and --graph off."""
    made = lemur(
        "curate", folder / "rows.jsonl", "--out", folder / "full", "--graph", "off", "--license", "MIT", full=True
    )
    assert made.returncode == 0, made.stderr
    tables = sorted(path.relative_to(folder / "full") for path in (folder / "full").rglob("*.parquet"))
    assert len(tables) >= 6
    for table in tables:
        assert (folder / "snapshot" / table).read_bytes() == (folder / "full" / table).read_bytes(), table
    stages = pq.read_table(folder / "snapshot" / "decisions.parquet").column("stage").to_pylist()
    assert stages.count("lexical") == 1


def test_folders_are_read_checked_and_published(folder: Path, lemur: Lemur) -> None:
    for kind, checks in (("snapshot", 12), ("full", 12), ("blocks", 9)):
        verified = lemur("verify", folder / kind, "--json")
        assert verified.returncode == 0, verified.stdout
        assert len(json.loads(verified.stdout)) >= checks
        assert len(lemur("list", folder / kind, "--json").stdout) > 100
        assert lemur("open", folder / kind, "--no-browser").returncode == 0
    assert lemur("show", "plain", "--in", folder / "snapshot").returncode == 0
    assert lemur("show", folder / "snapshot", "near").returncode == 0
    published = lemur("publish", folder / "snapshot", "--repo-id", "a/b", "--dry-run")
    assert published.returncode == 0, published.stderr


def test_new_networks_are_told_from_known_ones(folder: Path, lemur: Lemur) -> None:
    known = lemur("novel", folder / "near.py", "--against", folder / "snapshot", "--json")
    assert known.returncode == 3, known.stderr
    assert json.loads(known.stdout)["notes"] == [f"no file was run, and no graphs are compared: {_ABSENT}"]
    for path, status in (("new", 0), ("near.py", 3)):
        gated = lemur("gate", folder / path, "--against", folder / "snapshot")
        assert gated.returncode == status, gated.stdout + gated.stderr
        assert f"note: no network was run, and no graphs are compared: {_ABSENT}" in gated.stdout


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_needs_torch_says_so_in_one_line(arguments: str, folder: Path, lemur: Lemur) -> None:
    words = arguments.replace("FOLDER", str(folder)).split()
    done = lemur(*words)
    assert done.returncode == 1, done.stdout
    assert re.fullmatch(REFUSED[arguments], done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr


def test_they_do_not_import_torch_where_it_is_installed(folder: Path) -> None:
    code = (
        "import sys, pathlib, curate, lemur.folders as folders; folder = pathlib.Path(sys.argv[1])\n"
        "folders.verify_folder(folder), folders.show('plain', [folder]), folders.list_items(folder)\n"
        "curate.Snapshot(folder).novelty(folder.with_name('near.py').read_text(), graph=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-P", "-c", code, folder / "snapshot"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
