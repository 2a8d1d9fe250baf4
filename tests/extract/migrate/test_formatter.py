"""New files are written as the project's own formatter writes them, if there is one here."""

import shutil
import sys
from pathlib import Path

import pytest

from extract.migrate.project.writing import read_formatter

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
    assert list(read_formatter(tmp_path).programs) == names


def test_what_is_not_installed_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\n", encoding="utf-8")
    install(tmp_path, monkeypatch)
    assert read_formatter(tmp_path).format(TEXT) == (TEXT, "")


def test_each_file_is_handed_over_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ruff.toml").touch()
    install(tmp_path, monkeypatch, ruff=UPPER)
    texts, note = read_formatter(tmp_path).format(TEXT)
    assert texts == {"p/new.py": "X = 'A'\nformat - --quiet --stdin-filename p/new.py"}
    assert note == "format    ruff, as the project configures"


def test_one_that_fails_changes_nothing_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\n[tool.isort]\n", encoding="utf-8")
    install(tmp_path, monkeypatch, isort=UPPER, black=FAILING)
    texts, note = read_formatter(tmp_path).format(TEXT)
    assert (texts, note.partition(",")[0]) == (TEXT, "format    black")
    assert "failed on p/new.py" in note


@pytest.mark.skipif(not (Path(sys.executable).parent / "ruff").exists() and not shutil.which("ruff"), reason="no ruff")
def test_a_real_one(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ruff.format]\nquote-style = 'double'\n", encoding="utf-8")
    assert read_formatter(tmp_path).format(TEXT)[0] == {"p/new.py": 'x = "a"\n'}
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]
