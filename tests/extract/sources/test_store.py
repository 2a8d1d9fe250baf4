"""The cache: complete or absent, shared between processes, and rejected if its bytes have changed."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from extract.sources import open_source
from extract.sources.contents import Contents, PackageSource
from extract.sources.metadata import PackageFacts
from extract.sources.store import (
    keep_source,
    keep_tree,
    read_listing,
    read_source,
    store_folder,
    tree_root,
)
from lemur_core.files.errors import DamagedError, UserError

Make = Callable[..., Path]

CODE = Contents({"pkg/__init__.py": b"", "pkg/a.py": b"x = 1\n", "b.py": b"\xff"}, {"LICENSE": b"MIT"})


def kept() -> tuple[PackageSource, Path]:
    """Return a package in the cache, and the path of its record."""
    facts, folder = PackageFacts("pkg", "1.0", "MIT", ("torch",)), store_folder("packages", "pkg@1.0")
    known = {"name": "pkg@1.0", "version": "1.0", "origin": "pkg:pypi/pkg@1.0"}
    source = keep_source(CODE, facts, folder, "pkg", kind="package", **known)
    return source, folder / f"{source.digest}.json"


def test_a_tree_is_kept_once() -> None:
    digest, files = keep_tree(CODE, "pkg")
    assert [(file.path, file.module, file.is_package) for file in files] == [
        ("b.py", "b", False),
        ("pkg/__init__.py", "pkg", True),
        ("pkg/a.py", "pkg.a", False),
    ]
    lines = "".join(f"{file.path} {file.blob}\n" for file in files)
    assert digest == hashlib.sha256(lines.encode()).hexdigest()
    assert read_listing(digest) == files
    assert {path.relative_to(tree_root(digest)).as_posix() for path in tree_root(digest).rglob("*.py")} == set(
        CODE.python
    )
    inode = tree_root(digest).stat().st_ino
    assert keep_tree(CODE, "pkg") == (digest, files)
    assert tree_root(digest).stat().st_ino == inode
    assert not list(store_folder("work").iterdir())


def test_a_file_that_is_also_a_folder() -> None:
    with pytest.raises(UserError, match="cannot be put into the cache"):
        keep_tree(Contents({"a.py": b"", "a.py/b.py": b""}, {}), "pkg")
    assert not list(store_folder("work").iterdir())


def test_records() -> None:
    source, path = kept()
    assert read_source(path) == source
    assert read_source(path.with_name("x.json")) is None
    shutil.rmtree(source.root.parent)
    assert read_source(path) is None  # its tree is not there


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe"])
def test_damaged_records_are_as_if_absent(damage: bytes) -> None:
    source, path = kept()
    digest = source.digest
    path.write_bytes(damage)
    assert read_source(path) is None
    (tree_root(digest).parent / "listing.json").write_bytes(damage)
    assert read_listing(digest) is None
    assert keep_tree(CODE, "pkg")[0] == digest
    assert read_listing(digest) is not None


def test_changed_bytes_are_noticed(install: Make) -> None:
    install("pkg", "1.0", {"pkg/__init__.py": "x = 1\n", "pkg/a.py": "y = 1\n"})
    source = open_source("pkg@1.0")
    assert source.read(source.files[1]) == b"y = 1\n"
    (source.root / "pkg/a.py").write_bytes(b"y = 2\n")
    assert source.read(source.files[0]) == b"x = 1\n"
    with pytest.raises(DamagedError, match="damaged, and dropped; run again"):
        source.read(source.files[1])
    again = open_source("pkg@1.0")
    (again.root / "pkg/a.py").unlink()
    with pytest.raises(DamagedError, match="damaged, and dropped; run again"):
        again.read(again.files[1])
    assert open_source("pkg@1.0").read(again.files[1]) == b"y = 1\n"


def test_two_processes_at_once(install: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    site = install("pkg", "1.0", {f"pkg/m{number}.py": f"x = {number}\n" for number in range(200)})
    monkeypatch.setenv("PYTHONPATH", str(site))
    code = "import sys; from extract.sources import open_source; s = open_source('pkg@1.0'); [s.read(f) for f in s.files]; print(s.digest)"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
        for _ in range(2)
    ]
    outputs = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    assert len({output for output, _ in outputs}) == 1
    assert len(list(store_folder("trees").iterdir())) == 1
    assert not list(store_folder("work").iterdir())
