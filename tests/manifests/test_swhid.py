"""SWHIDs: equal to what git computes."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.provenance.swhid import blob_sha1, content_swhid, directory_swhid, qualify_swhid

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git to compare with")

EMPTY_BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=8)
paths = st.lists(names.filter(lambda name: name not in (".", "..")), min_size=1, max_size=4).map("/".join)


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, input=stdin, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_of_nothing() -> None:
    assert content_swhid(b"") == f"swh:1:cnt:{EMPTY_BLOB}"
    assert directory_swhid([]) == f"swh:1:dir:{EMPTY_TREE}"


@needs_git
@pytest.mark.parametrize("data", [b"", b"x", b"line\r\n", bytes(range(256)) * 100])
def test_a_file_as_git(tmp_path: Path, data: bytes) -> None:
    assert blob_sha1(data) == git(tmp_path, "hash-object", "--stdin", stdin=data)


@needs_git
def test_a_folder_as_git(tmp_path: Path) -> None:
    # "a.py" sorts between the folders "a" and "a0" in git's order, and before both as plain text
    files = {name: name.encode() for name in ("a/x", "a.py", "a-b", "a0/y", "ab", "b/c/d/e", "b/c.py", "ü/é", " ")}
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    git(tmp_path, "init", "-q")
    git(tmp_path, "-c", "core.autocrlf=false", "add", "--all")
    tree = directory_swhid((path, blob_sha1(data)) for path, data in files.items())
    assert tree == f"swh:1:dir:{git(tmp_path, 'write-tree')}"


@given(st.lists(paths, unique=True, max_size=8), st.randoms())
def test_the_order_of_files_is_irrelevant(listed: list[str], random) -> None:  # type: ignore[no-untyped-def]
    folders = {path.rsplit("/", depth)[0] for path in listed for depth in range(1, path.count("/") + 1)}
    files = [(path, blob_sha1(path.encode())) for path in listed if path not in folders]
    before = directory_swhid(files)
    random.shuffle(files)
    assert directory_swhid(files) == before


@pytest.mark.parametrize(
    "paths", [["/a"], ["a//b"], ["../a"], ["a/.."], ["./a"], [""], ["a\0"], ["a", "a"], ["a", "a/b"], ["a/b", "a"]]
)
def test_no_folder_holds_these(paths: list[str]) -> None:
    with pytest.raises(ValueError, match=r"is not a plain relative path|occurs twice|is a file"):
        directory_swhid((path, EMPTY_BLOB) for path in paths)


def test_qualifiers() -> None:
    where = {"origin": "https://example.org/a;b%", "anchor": f"swh:1:rev:{EMPTY_TREE}", "path": "/timm/layers/se.py"}
    swhid = content_swhid(b"")
    assert qualify_swhid(swhid, **where, lines=(9, 15)) == (
        f"swh:1:cnt:{EMPTY_BLOB};origin=https://example.org/a%3Bb%25;anchor=swh:1:rev:{EMPTY_TREE}"
        ";path=/timm/layers/se.py;lines=9-15"
    )
    assert qualify_swhid(swhid, origin="", anchor="", path="", lines=(3, 3)) == f"{swhid};lines=3"
