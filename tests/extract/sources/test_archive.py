"""Archives: hostile ones are refused in one line, and none of their files is ever written."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import extract.sources.contents
import extract.sources.package
from extract.sources.contents import is_safe
from extract.sources.package import read_archive
from lemur_core.files.errors import UserError
from tests.builders.suites import table


def everything(names: Iterable[str]) -> list[str]:
    return list(names)


def tar(path: Path, members: Iterable[tuple[str | tarfile.TarInfo, bytes]], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for member, data in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(data) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(data))
    return path


def pack(path: Path, members: Iterable[tuple[str | zipfile.ZipInfo, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for member, data in members:
            archive.writestr(member, data)
    return path


def refused(path: Path, choose: Callable[[list[str]], Iterable[str]] = everything) -> str:
    with pytest.raises(UserError) as raised:
        read_archive(path, choose)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(path.name) or "bytes" in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip", ".whl"])
def test_the_chosen_files_are_read(tmp_path: Path, suffix: str) -> None:
    members = [("b/x.py", b"1"), ("a.py", b"2"), ("big.bin", b"3" * 1000), ("empty.py", b"")]
    path = tmp_path / f"x{suffix}"
    mode = {"gz": "w:gz", "tgz": "w:gz", "bz2": "w:bz2", "xz": "w:xz"}.get(suffix.rpartition(".")[2], "w")
    pack(path, members) if suffix in (".zip", ".whl") else tar(path, members, mode)
    seen: list[str] = []

    def choose(names: list[str]) -> list[str]:
        seen.extend(names)
        return [name for name in names if name.endswith(".py")]

    assert read_archive(path, choose) == {"a.py": b"2", "b/x.py": b"1", "empty.py": b""}
    assert seen == [name for name, _ in members]


def archive(folder: Path, kind: str, members: list[tuple[str, bytes]]) -> Path:
    return pack(folder / "x.zip", members) if kind == "zip" else tar(folder / "x.tar.gz", members)


@table(__file__, "archive.md", "A path that leads out is refused", globals())
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_path_that_leads_out_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    path = archive(tmp_path, kind, [("a.py", b""), (name, b"x")])
    assert "leads out of its folder" in refused(path, lambda names: [])  # even if nobody asks for it


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ["tar", "zip"])
@table(__file__, "archive.md", "Bounds", globals())
def test_bounds(
    tmp_path: Path, kind: str, bound: str, members: list[tuple[str, bytes]], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (extract.sources.package, extract.sources.contents):
        if hasattr(module, bound):
            monkeypatch.setattr(module, bound, 100)
    path = archive(tmp_path, kind, members)
    assert says in refused(path)
    if bound == "MAX_FILE_BYTES":
        assert read_archive(path, lambda names: ["b.py"]) == {"b.py": b""}


@pytest.mark.parametrize("where", ["a member that nobody asks for", "a header"])
def test_a_tar_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(extract.sources.package, "_MAX_UNPACKED_BYTES", 1 << 20)
    info = tarfile.TarInfo("weights.bin")
    info.pax_headers = {"comment": "0" * (4 << 20)} if where == "a header" else {}
    path = tar(tmp_path / "x.tar.gz", [("a.py", b""), (info, bytes(0 if where == "a header" else 8 << 20))])
    assert path.stat().st_size < 100_000
    assert "unpacks to more than 1,048,576 bytes" in refused(path, lambda names: [])


@pytest.mark.parametrize(
    "name", ["x.whl", "x.tar.gz", *(pytest.param(f"x.tar.{kind}", marks=pytest.mark.slow) for kind in ("bz2", "xz"))]
)
def test_an_archive_out_of_proportion_is_not_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    members = [(f"{number}.py", bytes(30 << 20)) for number in range(3)]
    if name.endswith(".whl"):
        pack(path, members, zipfile.ZIP_DEFLATED)
    else:
        tar(path, members, f"w:{name.rpartition('.')[2]}")
    assert "bytes of it unpack to more than" in refused(path)


@given(st.text(max_size=20))
def test_a_safe_name_stays_below_its_folder(name: str) -> None:
    assert not is_safe("")
    if is_safe(name):
        assert (Path("/some/folder") / name).is_relative_to("/some/folder")
        assert ".." not in name.split("/")


@pytest.mark.parametrize(
    "kind", ["zip", tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_links_and_devices_are_not_there(tmp_path: Path, kind: bytes | str) -> None:
    if isinstance(kind, str):
        link = zipfile.ZipInfo("link.py")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        path = pack(tmp_path / "x.whl", [("a.py", b"1"), (link, b"/etc/passwd")])
    else:
        info = tarfile.TarInfo("link.py")
        info.type, info.linkname = kind, "/etc/passwd"
        path = tar(tmp_path / "x.tar.gz", [("a.py", b"1"), (info, b"")])
    assert read_archive(path, everything) == {"a.py": b"1"}


@pytest.mark.parametrize("name", ["x.whl", "x.zip", "x.tar.gz", "x.tar.bz2", "x.tar.xz", "x.tar"])
@pytest.mark.parametrize("data", [b"", b"no archive", b"PK\x03\x04", b"\x1f\x8b\x08\x00", b"\xfd7zXZ\x00", b"BZh9"])
def test_what_is_no_archive(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data + b"\x01" * (0 if not data else 600))
    refused(path)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_truncated_archive(tmp_path: Path, kind: str) -> None:
    members = [(f"{number}.py", bytes(range(256)) * 20) for number in range(20)]
    path = archive(tmp_path, kind, members)
    data = path.read_bytes()
    for size in (len(data) // 3, len(data) - 30):
        path.write_bytes(data[:size])
        refused(path)


def test_a_zip_whose_bytes_are_damaged(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", [("a.py", b"content of a file")])
    path.write_bytes(path.read_bytes().replace(b"content", b"CONTENT"))
    assert "CRC" in refused(path)
