"""The cache: complete or absent, shared between processes, and rejected if its bytes have changed."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from extract.sources import open_source
from extract.sources.contents import PackageSource, keep_source, read_source, store_folder
from extract.sources.metadata import PackageFacts
from lemur_core.files.errors import DamagedError, UserError

CODE = {"pkg/__init__.py": b"", "pkg/a.py": b"x = 1\n", "b.py": b"\xff"}
NAMED = {"kind": "package", "name": "pkg@1.0", "version": "1.0", "origin": "pkg:pypi/pkg@1.0"}


def keep(code: dict[str, bytes], folder: str = "pkg@1.0") -> tuple[PackageSource, Path]:
    """Put a package into the cache; return it, and the path of its record."""
    facts, where = PackageFacts("pkg", "1.0", "MIT", ("torch",), (("lib", ""),)), store_folder("packages", folder)
    source = keep_source(code, facts, where, "pkg", **NAMED)
    return source, where / f"{source.digest}.json"


def test_equal_files_are_kept_once() -> None:
    source, path = keep(CODE)
    assert [(file.path, file.module, file.is_package) for file in source.files] == [
        ("b.py", "b", False),
        ("pkg/__init__.py", "pkg", True),
        ("pkg/a.py", "pkg.a", False),
    ]
    lines = "".join(f"{file.path} {file.blob}\n" for file in source.files)
    assert source.digest == hashlib.sha256(lines.encode()).hexdigest()
    assert {file.relative_to(source.root).as_posix(): file.read_bytes() for file in source.root.rglob("*.py")} == CODE
    assert read_source(path) == source
    assert read_source(path.with_name("x.json")) is None
    inode = source.root.stat().st_ino
    assert keep(CODE, "other")[0].root.stat().st_ino == inode
    assert not list(store_folder("work").iterdir())
    shutil.rmtree(source.root.parent)
    assert read_source(path) is None


def test_what_cannot_be_kept() -> None:
    with pytest.raises(UserError, match=r"^pkg: holds 'a.py/b.py': 'a.py' is a file; do not use it"):
        keep({"a.py": b"", "a.py/b.py": b""})
    with pytest.raises(UserError, match=r"^pkg: holds no Python code"):
        keep({})
    assert not list(store_folder("work").iterdir())


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe"])
def test_damaged_records_are_as_if_absent(damage: bytes) -> None:
    source, path = keep(CODE)
    path.write_bytes(damage)
    assert read_source(path) is None
    assert keep(CODE) == (source, path)
    assert read_source(path) == source


def test_changed_bytes_are_noticed(make_wheel: Callable[..., Path]) -> None:
    make_wheel("pkg", "1.0", {"pkg/__init__.py": "x = 1\n", "pkg/a.py": "y = 1\n"})
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
