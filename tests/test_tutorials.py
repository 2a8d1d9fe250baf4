"""README and tutorials, run as they stand: files are written, commands run, and what they print is what the page shows.

`...` in a page stands for any text: seconds, digests, what is left out.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)

#: All of LEMUR is traced where what records graphs has changed (`.ci/run`): it takes ten minutes, in the user's cache.
WHOLE = "LEMUR_CURATOR_TEST_WHOLE" in os.environ
#: How commands of the README begin that are not run as they stand: what is run (None: nothing), and why.
NOT_RUN = {
    **(
        {}
        if WHOLE
        else {"make run": (" OUT='snapshot --include ga-667 --include ga-932'", "minutes, for all networks")}
    ),
    "lemur train run design": (" --data synthetic --images 256 --epochs 1", "images of the Hub, and minutes"),
    "lemur pull OWNER/NAME": (None, "nobody published it; tests/manifests/publishing has a Hub of its own"),
}

pytestmark = pytest.mark.slow


def commands_in(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and what it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, re.sub(r"\A( +#.*\n)+", "", shown)  # the comment goes on


def assert_shown(printed: str, shown: str) -> None:
    pattern = ".*?".join(map(re.escape, re.split(r"^\.\.\.\n|\.\.\.", shown, flags=re.MULTILINE)))
    assert re.fullmatch(pattern + r"\s*", printed, re.DOTALL), f"{printed}\n--- is not ---\n{shown}"


def run_page(page: Path, place: Path, environment: Mapping[str, str]) -> list[str]:
    """Do what a page says, in a folder. Returns: its commands."""
    commands, sourced = [], ""
    for kind, title, body in _FENCE.findall(page.read_text(encoding="utf-8")):
        if title:
            (place / title).parent.mkdir(parents=True, exist_ok=True)
            (place / title).write_text(body, encoding="utf-8")
        elif kind == "console":
            for command, shown in commands_in(body):
                commands.append(command)
                more, _ = next((how for start, how in NOT_RUN.items() if command.startswith(start)), ("", ""))
                if more is None:
                    continue
                typed = command.partition(" #")[0] + more
                sourced += f"{typed}\n" if typed.startswith("source ") else ""
                done = subprocess.run(
                    ["bash", "-c", sourced + typed], cwd=place, env=environment, capture_output=True, text=True
                )
                assert done.returncode == 0, f"{typed}\n{done.stderr}"
                if shown and not more:
                    assert_shown(done.stdout, shown)
    return commands


@pytest.fixture
def installed() -> dict[str, str]:
    """An environment in which `lemur` is installed."""
    return {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


def test_extraction_then_training(tmp_path: Path, installed: dict[str, str]) -> None:
    run_page(DOCS / "tutorial-extraction.md", tmp_path, installed)
    run_page(DOCS / "tutorial-training.md", tmp_path, installed)


@pytest.mark.network
def test_snapshot(tmp_path: Path, lemur_wheel: Path, installed: dict[str, str]) -> None:
    run_page(DOCS / "tutorial-snapshot.md", tmp_path, installed)


@pytest.mark.network
def test_readme(tmp_path: Path, lemur_wheel: Path, request: pytest.FixtureRequest) -> None:
    """In the order of the page, in one folder: that of a checkout where `make` has installed, but curated nothing."""
    if WHOLE:
        request.getfixturevalue("users_cache")
    environment_folder = Path(sys.prefix)
    if not (environment_folder / ".ready").exists():
        pytest.skip(f"{environment_folder}: not an environment that make installed")
    (tmp_path / ".venv").symlink_to(environment_folder)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
        os.utime(tmp_path / name, (0, 0))  # older than what was installed
    before = [folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder, "lemur").exists()]
    # A `make` below the one that runs the tests prints the folders that it enters.
    own = {name: value for name, value in os.environ.items() if name not in {"MAKELEVEL", "MAKEFLAGS", "MFLAGS"}}
    # No browser opens, and no Hub is reached, as offline.
    others = {"PATH": os.pathsep.join(before), "BROWSER": "true", "HF_ENDPOINT": "http://127.0.0.1:9"}
    commands = run_page(ROOT / "README.md", tmp_path, {**own, **others})
    assert [start for start in NOT_RUN if not any(command.startswith(start) for command in commands)] == []


@pytest.mark.parametrize(("printed", "shown"), [("a\nb\n", "a\n"), ("a\n", "...\nb\n"), ("1.5 s\n", "... m\n")])
def test_what_is_not_shown_is_a_failure(printed: str, shown: str) -> None:
    with pytest.raises(AssertionError):
        assert_shown(printed, shown)


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "not included in the" not in done.stderr, "a page stands nowhere in the navigation"
    api = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    for name in ("BlockExtractor", "load_block", "check_nn"):
        assert name in api
