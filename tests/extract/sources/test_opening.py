"""Local folders, corpora, and how words are mapped to kinds of sources."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extract.sources import PackageSource, name_apart, open_available, open_source
from lemur_core.files.errors import UserError
from manifests.records.corpus import Corpus
from tests.builders.suites import write_files

FILES = ("models/a.py", "train.py", "tests/test_a.py", ".venv/x.py", "env/pyvenv.cfg", "env/lib/y.py", "build/lib/a.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = write_files(tmp_path / "project", {path: f"# {path}\n" for path in FILES})
    terms = "Apache License\nVersion 2.0\nTERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION"
    (root / "LICENSE").write_text(terms)
    (root / "pyproject.toml").write_text('[project]\ndependencies = ["torch>=2"]\n')
    return root


def modules(source: PackageSource) -> dict[str, str]:
    return {file.path: file.module for file in source.files}


def test_a_folder(folder: Path) -> None:
    source = open_source(str(folder))
    assert (source.name, source.kind, source.version, source.origin) == ("project", "folder", "", "")
    assert (source.license, source.requires, source.root) == ("Apache-2.0", ("torch>=2",), folder)
    assert source.swhid.startswith("swh:1:dir:")
    assert modules(source) == {"models/a.py": "models.a", "train.py": "train"}
    assert source.read(source.files[0]) == b"# models/a.py\n"
    assert open_source(f"{folder}/", name="mine").name == "mine"
    (folder / "__init__.py").write_text("")
    package = {"__init__.py": "project", "models/a.py": "project.models.a", "train.py": "project.train"}
    assert modules(open_source(str(folder))) == package


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """By the folders above them, in any order; the same folder twice is one source."""
    places = ("one/net", "two/net", "x/two/net", "other")
    for place in places:
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a.py").write_text(f"NAME = {place!r}\n")
    sources = [open_source(str(tmp_path / place)) for place in places]
    x = f"{tmp_path.name}-two-net"
    assert [source.name for source in name_apart([*sources, sources[0]])] == ["one-net", x, "x-two-net", "other"]
    assert [source.name for source in name_apart(reversed(sources))] == ["other", "x-two-net", x, "one-net"]


def test_a_changed_folder_is_another_source(folder: Path) -> None:
    before = open_source(str(folder))
    (folder / "models/a.py").write_text("x = 1\n")
    after = open_source(str(folder))
    assert after.digest != before.digest
    with pytest.raises(UserError, match=r"project models/a\.py: changed since the source was opened .*; run again"):
        before.read(before.files[0])
    with pytest.raises(UserError, match="not the pinned one"):
        open_source(str(folder), digest=before.digest)


def test_links_are_followed_only_inside(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    for name in ("b.py", "COPYING", "weights.bin"):
        (tmp_path / "other" / name).write_text("MIT License")
        (folder / name).symlink_to(tmp_path / "other" / name)
    (folder / "around.py").symlink_to(f"../{folder.name}/../other/b.py")
    (folder / "inner.py").symlink_to(folder / "train.py")
    (folder / "other").symlink_to(tmp_path / "other")
    (folder / "loop").symlink_to(folder)
    (folder / "broken.py").symlink_to(tmp_path / "nothing")
    (folder / "self.py").symlink_to("self.py")
    (folder / "null.py").symlink_to("/dev/null")
    os.mkfifo(folder / "pipe.py")
    source = open_source(str(folder))
    assert (list(modules(source)), source.license) == (["inner.py", "models/a.py", "train.py"], "Apache-2.0")
    noted = capsys.readouterr().err
    for name in ("COPYING", "around.py", "b.py", "null.py"):
        assert f"project: {name} is left out: a link that leaves the folder is not followed\n" in noted
    assert noted.count("\n") == 4


def test_what_cannot_be_read_is_left_out(folder: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def scan(path: str, real: Callable[[str], Any] = os.scandir) -> Any:
        if str(path).endswith("models"):  # root may read all, so its permissions do not tell
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    (folder / "secret.py").write_text("")
    monkeypatch.setattr(os, "scandir", scan)
    monkeypatch.setattr(os, "access", lambda path, _: path.name != "secret.py")
    source = open_source(str(folder))
    assert list(modules(source)) == ["train.py"]
    noted = "project: {} is left out: Permission denied; make it readable if it is needed"
    assert source.left_out == (noted.format("secret.py"), noted.format("models"))
    assert tuple(capsys.readouterr().err.splitlines()) == source.left_out


def test_which_word_means_what(
    folder: Path, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    make_wheel("project", "1.0", {"project.py": ""})
    assert open_source("project@1.0").kind == "package"
    assert open_source("./project").kind == "folder"
    assert open_source("../" + tmp_path.name + "/project").kind == "folder"
    (tmp_path / "my project").mkdir()
    (tmp_path / "my project" / "a.py").write_text("")
    assert open_source("my project").name == "my project"
    monkeypatch.chdir(folder)
    assert open_source(".").name == "project"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_source("~/project").kind == "folder"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("./nowhere", r"^\./nowhere: no such folder; name a folder of Python code"),
        ("project/train.py", r"^project/train\.py: is a file, not a folder"),
        ("./empty", r"^\./empty: holds no Python code"),
        ("two words", r"^'two words': not a source; a source is NAME or NAME@VERSION"),
    ],
)
def test_what_is_no_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        open_source(spec)


def test_a_corpus(folder: Path, make_wheel: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    make_wheel("pkg", "1.0", {"pkg/__init__.py": "", "pkg/a.py": ""})
    entries: list[dict[str, Any]] = [
        {"name": "b", "source": "pkg@1.0", "priority": 2, "paths": ["pkg/a"], "repository": "o/b"},
        {"name": "a", "source": "pkg@9.9", "paths": ["x"], "alternative": {"source": str(folder), "paths": ["models"]}},
    ]
    corpus = Corpus.model_validate({"name": "mine", "sources": entries})
    sources, unopened = open_available(corpus)
    assert not unopened
    facts = [(source.name, source.priority, source.paths, source.instead_of) for source in sources]
    assert facts == [("b@1.0", 2, ("pkg/a",), ""), ("a", 1, ("models",), "pkg@9.9")]
    assert "pkg@9.9: no such release; newest ones: 1.0; taking" in capsys.readouterr().err
    entries[1]["alternative"]["source"] = "./nowhere"
    opened, unopened = open_available(Corpus.model_validate({"name": "mine", "sources": entries}))
    assert [source.name for source in opened] == ["b@1.0"]
    ((name, why),) = unopened
    assert name == "a"
    assert re.match(r"a: neither of its sources can be opened: pkg@9\.9: .*; \./nowhere: no such folder", why)
