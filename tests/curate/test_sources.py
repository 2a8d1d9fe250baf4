"""SOURCE in all its forms: what is opened, what is said when nothing can be, and folders of Python files."""

import hashlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from curate.rows import BATCH_ROWS, ROW_SCHEMA, Source
from curate.sources import open_source
from lemur_core.files.errors import UserError


def rows_of(source: Source) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in source.batches():
        assert batch.schema == ROW_SCHEMA
        assert 0 < batch.num_rows <= BATCH_ROWS
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def read(path: Path | str) -> list[dict[str, Any]]:
    return rows_of(open_source(str(path)))


def error_of(path: Path | str) -> str:
    with pytest.raises(UserError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what is opened ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "arguments"), [("lemur", ()), ("lemur@2.0.5", ("2.0.5",)), ("lemur@", ("",))])
def test_lemur_release(monkeypatch: pytest.MonkeyPatch, spec: str, arguments: tuple[str, ...]) -> None:
    module = types.ModuleType("curate.sources.lemur")
    seen: list[tuple[str, ...]] = []
    module.LemurRelease = lambda *given: seen.append(given) or "release"  # type: ignore[attr-defined,func-returns-value]
    monkeypatch.setitem(sys.modules, "curate.sources.lemur", module)
    assert open_source(spec) == "release"
    assert seen == [arguments]


@pytest.mark.parametrize("spec", ["missing", "missing.parquet", "", "a\0b", "x/y.csv", "notes.txt/inside.csv"])
def test_no_such_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    assert error_of(spec).endswith(
        ": no such file or folder; SOURCE is lemur[@VERSION], installed, a .parquet/.jsonl/.csv file, "
        "a folder of .py files, or hf://datasets/OWNER/NAME"
    )


def test_path_that_cannot_be_looked_at() -> None:
    assert ": cannot be read: File name too long; SOURCE is " in error_of("x" * 5000)


@pytest.mark.parametrize("name", ["notes.txt", "rows.json", "rows", "model.py", "rows.parquet.gz"])
def test_unknown_suffix(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x = 1")
    assert ": unknown kind of file; SOURCE is lemur[@VERSION]" in error_of(tmp_path / name)


# --- a folder of .py files --------------------------------------------------------------------------------------


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


def test_folder_rows(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            "b.py": b"b = 1\n",
            "a/z.py": b"z = 1\n",
            "a.py": b"a = 1\n",
            "a-b.py": b"",
            "a/y/x.py": b" \n\t",
            "bom.py": b"\xef\xbb\xbfx = 1\r\ny = 2\rz = 3\n",
            "latin.py": b"# caf\xe9\n",
            ".hidden/c.py": b"c = 1\n",
            "__pycache__/d.py": b"d = 1\n",
            "README.md": b"text",
        },
    )
    found = [(row["nn"], row["nn_code"], row["problem"]) for row in read(tmp_path)]
    assert found == [
        ("a-b", None, "nn_code is empty"),
        ("a", "a = 1\n", None),
        ("a/y/x", None, "nn_code is empty"),
        ("a/z", "z = 1\n", None),
        ("b", "b = 1\n", None),
        ("bom", "x = 1\ny = 2\nz = 3\n", None),
        ("latin", None, "invalid UTF-8 at byte 5"),
    ]


def test_folder_order_is_that_of_the_paths(tmp_path: Path) -> None:
    names = ["a.py", "a/b.py", "a-/c.py", "a0/d.py", "a/b/c.py", "a.b/e.py", "Z.py", "é/f.py", "a b/g.py"]
    found = [row["nn"] + ".py" for row in read(fill(tmp_path, dict.fromkeys(names, b"x = 1")))]
    assert found == sorted(names)


def test_folder_links(tmp_path: Path) -> None:
    outside = fill(tmp_path / "outside", {"secret.py": b"s = 1"})
    inside = fill(tmp_path / "inside", {"real.py": b"r = 1"})
    (inside / "copy.py").symlink_to("real.py")
    (inside / "leaves.py").symlink_to(outside / "secret.py")
    (inside / "loop.py").symlink_to("loop.py")
    (inside / "gone.py").symlink_to("nowhere.py")
    (inside / "up").symlink_to("..")
    (inside / "elsewhere").symlink_to(outside)
    found = [(row["nn"], row["nn_code"], row["problem"]) for row in read(inside)]
    assert found == [
        ("copy", "r = 1", None),
        ("gone", None, "cannot be read: No such file or directory"),
        ("leaves", None, "cannot be read: a link that leaves the folder is not followed"),
        ("loop", None, "cannot be read: Too many levels of symbolic links"),
        ("real", "r = 1", None),
    ]


def test_folder_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"a.py": b"a = 1", "b.py": b"b = 1"})
    plain = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "a.py":
            raise PermissionError(13, "Permission denied")
        return plain(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert [row["problem"] for row in read(tmp_path)] == ["cannot be read: Permission denied", None]


def test_folder_name_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "caf\udce9.py").write_bytes(b"x = 1")
    assert [row["nn"] for row in read(tmp_path)] == ["caf\\xe9"]


def test_folder_without_code(tmp_path: Path) -> None:
    fill(tmp_path, {".git/a.py": b"x", "readme.txt": b"x"})
    assert error_of(tmp_path).startswith(f"{tmp_path}: holds no .py files (hidden folders and __pycache__ are not")


def test_folder_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "codes", {"b.py": b"b = 1", "a/c.py": b"\xff"})
    expected = hashlib.sha256()
    for name, content in (("a/c.py", b"\xff"), ("b.py", b"b = 1")):
        expected.update(name.encode() + b"\0" + hashlib.sha256(content).hexdigest().encode() + b"\n")
    monkeypatch.chdir(folder)
    for source in (open_source(str(folder)), open_source(".")):
        assert source.name == "codes"
        [given] = source.inputs()
        assert (given.name, given.sha256, given.bytes) == ("codes", expected.hexdigest(), 6)
        assert rows_of(source) == rows_of(source)
        assert source.inputs() == [given]
