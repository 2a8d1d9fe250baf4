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


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (
            {},
            "    output = block(x)\n    assert output.shape == (2, 6, 5, 5)\n    output.abs().sum().backward()\n"
            "    assert any(parameter.grad is not None for parameter in block.parameters())\n",
        ),
        ({"learns": False}, "    output = block(x)\n    assert output.shape == (2, 6, 5, 5)\n"),
        (
            {"single": False, "shapes": ((2,), (3, 1)), "trains": False},
            "    outputs = block(x)\n"
            "    outputs = [item for item in tree_leaves(outputs) if isinstance(item, torch.Tensor)]\n"
            "    assert [tuple(output.shape) for output in outputs] == [(2,), (3, 1)]\n"
            "    sum(output.abs().sum() for output in outputs if output.requires_grad).backward()\n"
            "    assert any(parameter.grad is not None for parameter in block.parameters())\n",
        ),
    ],
    ids=["tensor", "no parameters", "several"],
)
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


@pytest.mark.parametrize(
    ("license_", "own", "force", "said"),
    [
        ("MIT", "MIT", False, "MIT, as the project's own (MIT); the notice in the file is kept"),
        ("MIT", "Apache-2.0 AND MIT", False, "MIT, as the project's own (Apache-2.0 AND MIT); the notice"),
        ("MIT", "NOASSERTION", False, "MIT; the project declares none that is known here"),
        ("Apache-2.0", "MIT", False, "Apache-2.0 in a project under MIT: together Apache-2.0 AND MIT; the notice"),
        ("Apache-2.0", "GPL-3.0-only", False, "together Apache-2.0 AND GPL-3.0-only; the notice"),
        ("GPL-3.0", "GPL-3.0", False, "GPL-3.0, as the project's own (GPL-3.0); which is not known to be permissive"),
        ("GPL-3.0", "MIT", False, None),
        ("GPL-3.0", "MIT", True, "GPL-3.0, NOT KNOWN TO BE PERMISSIVE; the project's is MIT"),
        ("NOASSERTION", "NOASSERTION", False, None),
        ("NOASSERTION", "NOASSERTION", True, "NOASSERTION, NOT KNOWN TO BE PERMISSIVE"),
        ("CC-BY-NC-4.0", "MIT", False, None),
    ],
)
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


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({}, []),
        ({"pyproject.toml": "[project]\nname = 'p'\n"}, []),
        ({"pyproject.toml": "[tool.black]\n"}, ["black"]),
        ({"pyproject.toml": "[tool.ruff]\n[tool.black]\n", ".isort.cfg": ""}, ["isort", "black"]),
        ({"ruff.toml": "", "pyproject.toml": "not = [toml"}, ["ruff"]),
        ({"pyproject.toml": "[tool.yapf]\n"}, []),
    ],
)
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
