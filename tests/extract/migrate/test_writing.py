"""The smoke test of a block, for every way in which blocks are called and return, and the project's own formatter."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extract.migrate.messages import SeenBlock
from extract.migrate.project.layout import choose_place, choose_test, read_project
from extract.migrate.project.project import license_notes
from extract.migrate.project.writing import (
    SourceModule,
    find_formatters,
    format_files,
    license_notice,
    module_text,
    read_closed_file,
    smoke_text,
)
from extract.specs.make import read_arguments
from lemur_core.files.errors import UserError
from tests.builders import extractions, projects
from tests.builders.suites import table

SEEN: dict[str, Any] = {"single": True, "shapes": ((2, 6, 5, 5),), "trains": True, "learns": True}
LONG = [f"torch.randn((2, {n}, 32, 32))" for n in range(5)]


def written(folder: Path, init: list[str], forward: list[str], seen: dict[str, Any], code: str = projects.BLOCK) -> str:
    arguments = {"init": {"args": init, "kwargs": {}}, "forward": {"args": forward, "kwargs": {}}}
    row = extractions.block(extractions.source(folder), "Residual", "backward")
    worked = read_arguments(json.dumps(arguments))
    assert worked is not None
    donated = SourceModule(row, code, False, (), worked)
    project = read_project(projects.make(folder / "p", projects.SRC))
    place = choose_place(project, "Residual", "Other")
    file = read_closed_file(code)
    return smoke_text(donated, file, place, choose_test(project, place), SeenBlock(**{**SEEN, **seen}))


def body(text: str) -> str:
    return text.partition("():\n    torch.manual_seed(0)\n")[2]


@table(__file__, "writing.md", "What is checked", globals())
def test_what_is_checked(tmp_path: Path, seen: dict[str, Any], expected: str) -> None:
    text = written(tmp_path, ["6"], ["x"], seen)
    before = "    block = Residual(6)\n" + "    block.eval()\n" * (not seen.get("trains", True))
    assert body(text) == before + expected
    compile(text, "test", "exec")
    assert ("def test_residual_runs_forward_and_backward():" in text) == seen.get("learns", True)
    assert ("from torch.utils._pytree import tree_leaves\n" in text) == ("tree_leaves(" in expected)


def test_names_of_the_arguments_are_imported(tmp_path: Path) -> None:
    text = written(tmp_path, ["Swish()", "nn.ReLU", "math.pi", "torch.float32"], LONG, {})
    assert (
        "import math\n\nimport torch\nfrom proj.layers.residual import Residual, Swish\nfrom torch import nn\n" in text
    )
    assert max(map(len, text.splitlines())) <= 100


def test_the_header_tells_the_licence(tmp_path: Path) -> None:
    row = extractions.block(extractions.source(tmp_path), "Residual", "backward")
    worked = read_arguments(projects.ARGUMENTS)
    assert worked is not None
    for license_, told in (("MIT", "under MIT; they were changed"), ("NOASSERTION", "NOT KNOWN TO BE PERMISSIVE: ")):
        donated = SourceModule(row.model_copy(update={"license": license_}), projects.BLOCK, False, (), worked)
        assert told in license_notice(donated)


def test_the_same_bytes_each_time(tmp_path: Path) -> None:
    row = extractions.block(extractions.source(tmp_path), "Residual", "backward")
    worked = read_arguments(projects.ARGUMENTS)
    assert worked is not None
    donated = SourceModule(row, projects.BLOCK, False, (), worked)
    texts = {module_text(donated, read_closed_file(projects.BLOCK)) for _ in range(3)}
    (text,) = texts
    assert text.endswith(projects.BLOCK.rpartition("class Residual")[2])


@table(__file__, "writing.md", "What two licences come to", globals())
def test_what_two_licences_come_to(license_: str, own: str, force: bool, said: str | None) -> None:
    row = SimpleNamespace(block="b", license=license_)
    donated, project = SimpleNamespace(row=row), SimpleNamespace(source=SimpleNamespace(license=own))
    if said is None:
        with pytest.raises(UserError, match=r"not known to be permissive, and not the project's .* --force moves it"):
            license_notes(donated, project, force=force)
    else:
        assert said in license_notes(donated, project, force=force)[0]


# --- the project's own formatter --------------------------------------------------------------------------------------


UPPER = f"#!{sys.executable}\nimport sys\nprint(sys.stdin.read().upper() + ' '.join(sys.argv[1:]), end='')\n"
FAILING = f"#!{sys.executable}\nraise SystemExit('no such version')\n"
TEXT = {"p/new.py": "x = 'a'\n"}


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Write programs into a folder, and let nothing else be found."""
    for name, text in programs.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(folder / "python"))


@table(__file__, "writing.md", "Those that are configured", globals())
def test_those_that_are_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], names: list[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "bin").mkdir()
    install(tmp_path / "bin", monkeypatch, isort=UPPER, black=UPPER, ruff=UPPER)
    assert list(find_formatters(tmp_path)) == names


def test_what_is_not_installed_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\n", encoding="utf-8")
    install(tmp_path, monkeypatch)
    assert format_files(tmp_path, TEXT) == (TEXT, "")


def test_each_file_is_handed_over_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ruff.toml").touch()
    install(tmp_path, monkeypatch, ruff=UPPER)
    texts, note = format_files(tmp_path, TEXT)
    assert texts == {"p/new.py": "X = 'A'\nformat - --quiet --stdin-filename p/new.py"}
    assert note == "format    ruff, as the project configures"


def test_one_that_fails_changes_nothing_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\n[tool.isort]\n", encoding="utf-8")
    install(tmp_path, monkeypatch, isort=UPPER, black=FAILING)
    texts, note = format_files(tmp_path, TEXT)
    assert (texts, note.partition(",")[0]) == (TEXT, "format    black")
    assert "failed on p/new.py" in note


@pytest.mark.skipif(not (Path(sys.executable).parent / "ruff").exists() and not shutil.which("ruff"), reason="no ruff")
def test_a_real_one(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ruff.format]\nquote-style = 'double'\n", encoding="utf-8")
    assert format_files(tmp_path, TEXT)[0] == {"p/new.py": 'x = "a"\n'}
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]
