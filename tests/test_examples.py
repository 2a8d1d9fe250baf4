"""The commands and Python of the documents, run on small real input: networks of LEMUR, and blocks of timm.

A page is gone through in order, in a folder of its own. Placeholders stand for what lies there, `lemur` as a source for
24 codes of the release. What takes minutes, a cluster, a model or an account is named in `NOT_RUN`; the tutorials have
a test of their own, and so has the README.
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_source
from extract.extractor import extract_to
from extract.model.results import Options
from tests import test_readme
from tests.builders import synthesis
from tests.builders.suites import read_table
from tests.test_environments import make_row

HERE = Path(__file__).parent
PAGES = [page for page in test_readme.PAGES if not page.name.startswith("tutorial")]

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.filterwarnings("ignore")]  # of other packages

#: Commands that are not run, and why not.
NOT_RUN = read_table(__file__, "examples.md", "Not run", globals())

#: Names in the documents, and what they stand for here. After `--in` DIR is a library of blocks.
STAND_FOR = {
    "NAME_OR_ID": "ga-0", "ID": "SEModule", "BLOCK": "SEModule", "BLOCKS": "blocks", "NET.py": "net.py",
    "NEW.py": "new.py", "FILE": "rebuilt.py", "SPEC.json": "spec.json", "new.parquet": "new.jsonl", "newer.parquet": "newer.jsonl", "timm": "timm@1.0.30",
}  # fmt: skip

#: A network by LEMUR's contract.
NET = synthesis.network(width=32, make="self.norm = nn.BatchNorm2d(32)", use="x = self.norm(x)")


def reason(command: str) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, command)), None)


@pytest.fixture(scope="module")
def library(curator_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An extraction of the README's blocks: its commands find their results."""
    out = tmp_path_factory.mktemp("library") / "blocks"
    extract_to(out, Options(sources=("timm@1.0.30",), names=("PreActBasic", "SEModule", "BlurPool2d", "DropPath")))
    return out


def rows_of(codes: list[str], name: str) -> str:
    rows = [json.loads(make_row(f"{name}-{number}", code, transform="norm_32")) for number, code in enumerate(codes)]
    rows[1]["task"], rows[2]["dataset"] = "img-segmentation", "cifar-100"
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def snapshot(real_codes: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of 24 networks of LEMUR, traced and with conversations; the rows lie beside it."""
    folder = tmp_path_factory.mktemp("snapshot")
    (folder / "rows.jsonl").write_text(rows_of(real_codes[:24], "ga"), encoding="utf-8")
    curate(open_source(str(folder / "rows.jsonl")), folder / "snapshot", CurateOptions(chat=True, license="MIT"))
    return folder / "snapshot"


@pytest.fixture
def place(tmp_path: Path, library: Path, snapshot: Path, real_codes: list[str]) -> Path:
    folder = tmp_path / "place"
    shutil.copytree(snapshot.parent, folder)
    shutil.copytree(snapshot, folder / "DIR")
    shutil.copytree(library, folder / "blocks")
    specs = (library / "specs.jsonl").read_text().splitlines()
    files = {
        "new.jsonl": rows_of(real_codes[60:64], "new"),
        "newer.jsonl": rows_of(real_codes[64:68], "newer"),
        **dict.fromkeys(("net.py", "nets/net.py"), NET),
        "spec.json": next(line for line in specs if "SEModule" in line),
        "project/__init__.py": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def filled(command: str) -> list[str]:
    """The words of a command, with what placeholders stand for here."""
    words = [STAND_FOR.get(word, word) for word in shlex.split(command)[1:]]
    for place, before in enumerate(words[:-1], 1):
        if before == "curate" and words[place] == "lemur":
            words[place] = "rows.jsonl"
        elif before == "--in":
            words[place] = "blocks"
        elif before == "--out" and words[place] in ("DIR", "snapshot", "blocks"):
            words[place] = "out"
    return words


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in ("README.md", "commands.md")], ids=lambda page: page.name
)
def test_commands_run(page: Path, place: Path, lemur_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    commands = [command for command, _, _ in test_readme.typed(page) if reason(command) is None]
    if not commands:
        pytest.skip("names no commands, or none that is run here")
    for command in commands:
        words = filled(command)
        shutil.rmtree(place / "out", ignore_errors=True)
        (place / "rebuilt.py").unlink(missing_ok=True)
        done = lemur_here(*words, cwd=place)
        assert done.returncode in ((0, 3) if words[0] == "novel" else (0,)), f"{command}\n{done.stderr}"


def test_what_is_not_run_is_in_the_documents() -> None:
    commands = [command for page in PAGES for command, _, _ in test_readme.typed(page)]
    for pattern in NOT_RUN:
        assert any(re.match(pattern, command) for command in commands), pattern


#: Pages whose Python another test runs, or that is not meant to be run.
_NO_PYTHON = ("api.md", "sandbox.md")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in _NO_PYTHON], ids=lambda page: page.name)
def test_python_runs(page: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = list(test_readme.blocks(page, "python"))
    if not pieces:
        pytest.skip("has no Python")
    monkeypatch.chdir(place)
    for piece in pieces:
        for package in re.findall(r"^(?:import|from) (\w+)", piece, re.MULTILINE):
            pytest.importorskip(package)
        piece = piece.replace('dataset="cifar-10"', 'dataset="cifar-10", source="rows.jsonl"')
        exec(compile(piece, page.name, "exec"), {"__name__": "example"})


def test_the_notebook_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    page = HERE.parent / "docs" / "first-look.ipynb"
    cells = ["".join(cell["source"]) for cell in json.loads(page.read_text())["cells"] if cell["cell_type"] == "code"]
    scope: dict[str, Any] = {"__name__": "example"}
    for cell in cells:
        exec(compile(cell, page.name, "exec"), scope)
    assert sum(scope["losses"][-20:]) < 0.7 * sum(scope["losses"][:20])
