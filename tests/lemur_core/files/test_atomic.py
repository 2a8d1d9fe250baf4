"""Files and folders are whole or absent: failures leave what was there, and nothing else."""

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lemur_core.files.atomic
from lemur_core.files.atomic import (
    atomic_file,
    atomic_folder,
    check_free,
    claim,
    make_scratch,
    remove_dead,
    sha256_file,
    write_together,
)
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.sandbox.server.processes import remove_folder
from manifests.folders.manifest import Manifest, Output, Stopwatch, read_manifest, write_manifest
from tests.builders.suites import table

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rename and permission rules of POSIX")


@pytest.fixture
def mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def fill(folder: Path, content: str, *more: str) -> None:
    """Write what a command writes: files, and a manifest that lists them."""
    for name in ("data/file", *more):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    write_manifest(folder, describe(content, "data/file", *more))


def describe(content: str, *paths: str) -> Manifest:
    outputs = [Output(path=path, sha256=hashlib.sha256(content.encode()).hexdigest(), bytes=1) for path in paths]
    return Manifest(
        kind="snapshot",
        versions={},
        parameters={"content": content},
        inputs=[],
        counts={},
        details={},
        outputs=outputs,
        measured=Stopwatch().measure(),
    )


def content(folder: Path) -> str:
    first = (folder / "data" / "file").read_text()
    assert read_manifest(folder).parameters == {"content": first}
    return first


def test_sha256_file(tmp_path: Path) -> None:
    data = b"x" * 3_000_000
    (tmp_path / "f").write_bytes(data)
    assert sha256_file(tmp_path / "f") == hashlib.sha256(data).hexdigest()


def test_file(tmp_path: Path, mask: None) -> None:
    path = tmp_path / "new" / "deep" / "f.txt"
    for text in ("one", "two"):
        with atomic_file(path) as part:
            assert part.parent == path.parent
            part.write_text(text)
            assert not path.exists() or path.read_text() != text
        assert path.read_text() == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == ["f.txt"]
    for below in (path / "g.txt", path / "deeper" / "g.txt"):
        with pytest.raises(NotADirectoryError, match=r"f\.txt"), atomic_file(below):
            pass


def test_folder(tmp_path: Path, mask: None) -> None:
    out = tmp_path / "deep" / "out"
    with atomic_folder(out) as folder:
        assert not out.exists()
        assert folder.parent == out.parent
        fill(folder, "one")
    assert content(out) == "one"
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    assert os.listdir(out.parent) == ["out"]


@pytest.mark.parametrize("empty", [False, True])
def test_a_relative_folder_and_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: bool) -> None:
    monkeypatch.chdir(tmp_path)
    if empty:
        Path("out").mkdir()
    with atomic_folder(Path("out")) as folder:
        fill(folder, "one")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert content(tmp_path / "out") == "one"


def test_force_replaces_the_whole_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for text in ("one", "two"):
        with atomic_folder(out, force=True) as folder:
            fill(folder, text, f"only-{text}")
            if text == "two":
                assert content(out) == "one"
    assert content(out) == "two"
    assert sorted(os.listdir(out)) == ["data", "manifest.json", "only-two"]
    assert os.listdir(tmp_path) == ["out"]


OTHERS = "holds {}, which lemur did not write; move it elsewhere, or choose another --out"
NOT_OURS = "has a manifest.json of another program, so lemur did not write it; choose another --out"


@table(__file__, "atomic.md", "A folder of another program is not replaced", globals())
def test_a_folder_of_another_program_is_not_replaced(tmp_path: Path, manifest: object) -> None:
    (tmp_path / "manifest.json").write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    (tmp_path / "index.js").write_text("precious")
    with pytest.raises(UserError) as caught:
        check_free(tmp_path, force=True)
    assert str(caught.value) == f"{tmp_path}: {NOT_OURS}"


def test_a_folder_with_files_of_others_is_not_replaced(tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "precious.txt"
    (out / "page").mkdir(parents=True)
    fill(out, "old", "blocks/a.py")
    stated = json.loads((out / "manifest.json").read_text())
    stated["outputs"] += [{**stated["outputs"][0], "path": path} for path in ("../precious.txt", str(outside))]
    (out / "manifest.json").write_text(json.dumps(stated))  # it may state what it likes
    outside.write_text("precious")
    (out / "page/files.json").write_text(json.dumps({"index.html": "", "page/000.js": "", "notes.txt": ""}))

    def add(name: str) -> Path:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("precious")
        return out / name

    for name in ("index.html", "page/000.js", "blocks/__pycache__/a.cpython-311.pyc"):
        add(name)
    (out / "empty").mkdir()
    check_free(out, force=True)
    for name in ("notes.txt", ".env", "page/notes.js", "data/mine/a.txt", "blocks/__pycache__/b.cpython-311.pyc"):
        path = add(name)
        with pytest.raises(UserError) as caught:
            check_free(out, force=True)
        assert str(caught.value) == f"{out}: {OTHERS.format(name)}"
        path.unlink()
    for target in (outside, tmp_path, "nowhere"):
        (out / "link").symlink_to(target)
        with pytest.raises(UserError, match="holds link, which lemur did not write"):
            check_free(out, force=True)
        (out / "link").unlink()
    add("a\x1b[2J\n.txt"), add("z.txt")
    with pytest.raises(UserError, match=r"holds a\\x1b\[2J\\n\.txt and 1 more, which"):
        check_free(out, force=True)
    (out / "a\x1b[2J\n.txt").unlink(), (out / "z.txt").unlink()
    (out / "data/file").write_text("edited by hand")
    with atomic_folder(out, force=True) as folder:
        fill(folder, "new")
    assert (content(out), outside.read_text(), sorted(os.listdir(out))) == (
        "new",
        "precious",
        ["data", "manifest.json"],
    )


def test_a_file_put_in_meanwhile_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    fill(out, "old")

    def replace() -> None:
        with atomic_folder(out, force=True) as folder:
            fill(folder, "new")
            (out / "notes.txt").write_text("precious")

    with pytest.raises(UserError, match=r"holds notes\.txt"):
        replace()
    assert (content(out), (out / "notes.txt").read_text(), os.listdir(tmp_path)) == ("old", "precious", ["out"])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("older", [True, False])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: type[BaseException], older: bool) -> None:
    out, file = tmp_path / "out", tmp_path / "f.txt"
    if older:
        out.mkdir()
        fill(out, "old")
        file.write_text("old")

    def write_folder() -> None:
        with atomic_folder(out, force=True) as folder:
            fill(folder, "new")
            raise error

    def write_file() -> None:
        with atomic_file(file) as part:
            part.write_text("half")
            raise error

    for write in (write_folder, write_file):
        with pytest.raises(error):
            write()
    assert sorted(os.listdir(tmp_path)) == (["f.txt", "out"] if older else [])
    assert not older or content(out) == file.read_text() == "old"


def test_the_old_folder_comes_back_when_the_last_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    fill(out, "old")
    rename = Path.rename

    def broken(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    def replace() -> None:
        with atomic_folder(out, force=True) as folder:
            fill(folder, "new")

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(OSError, match="Input/output"):
        replace()
    assert content(out) == "old"
    assert os.listdir(tmp_path) == ["out"]


FILE = "is a file, not a folder; choose another --out"


@table(__file__, "atomic.md", "What is in the way", globals())
def test_what_is_in_the_way(tmp_path: Path, name: str, force: bool, message: str) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("precious")
    out = tmp_path / name
    for attempt in (lambda: check_free(out, force=force), lambda: atomic_folder(out, force=force).__enter__()):
        with pytest.raises(UserError) as caught:
            attempt()
        assert str(caught.value) == f"{out}: {message}"
    with pytest.raises(UserError, match="cannot be written"):
        atomic_folder(tmp_path / "file" / "out").__enter__()
    assert sorted(os.listdir(tmp_path)) == ["dangling", "file", "full"]
    assert os.listdir(tmp_path / "full") == ["precious.txt"]


def test_a_link_to_a_folder_is_replaced_without_leftovers(tmp_path: Path) -> None:
    real, out = tmp_path / "real", tmp_path / "out"
    real.mkdir()
    fill(real, "old")
    out.symlink_to(real)
    with atomic_folder(out, force=True) as folder:
        fill(folder, "new")
    assert content(out) == "new"
    assert content(real) == "old", "what the link led to is not ours"
    assert sorted(os.listdir(tmp_path)) == ["out", "real"]


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    killed = "import os, signal, sys\nfrom pathlib import Path\nfrom lemur_core.files.atomic import atomic_folder\n"
    killed += "with atomic_folder(Path(sys.argv[1])) as part:\n"
    killed += "    (part / 'half').touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
    out = tmp_path / "out [1]"
    root = str(Path(__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", killed, str(out)], env={"PYTHONPATH": root}, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    others = [tmp_path / f".{out.name}.{name}" for name in ("somebody.part", "abcdefgh.part", "mine.old")]
    for other in others:
        other.mkdir()
        (other / "precious").touch()
        os.utime(other, (0, 0))
    with atomic_folder(out) as living:
        fill(living, "one")
        assert not left.exists()
        os.utime(living, (0, 0))
        with atomic_folder(out) as later:
            assert living.exists(), "its process lives"
            fill(later, "two")
        shutil.rmtree(out)
    assert content(out) == "one"
    assert sorted(tmp_path.iterdir()) == sorted([*others, out])


def test_a_folder_that_is_in_use_is_kept_whatever_its_process_is_called(tmp_path: Path) -> None:
    """Containers may share a temporary folder, but not the numbers of their processes."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with make_scratch(tmp_path, "name") as made:
        name = Path(made).name.replace(f"-{os.getpid()}-", f"-{gone.pid}-")
        used = tmp_path / name
        used.mkdir()
        handle = os.open(used, os.O_RDONLY)
        assert claim(handle)
        remove_dead(tmp_path)
        assert used.exists()
        os.close(handle)
        remove_dead(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [Path(made).name]
        (Path(made) / "precious").touch()
        (tmp_path / name).symlink_to(made)
        remove_dead(tmp_path, remove_folder)
        assert (Path(made) / "precious").exists(), "a link that somebody has put there is not followed"


def test_an_older_output_moved_aside_is_removed_once_there_is_a_new_one(tmp_path: Path) -> None:
    out, older = tmp_path / "out", tmp_path / ".out.lemur-abcdefgh.old"
    older.mkdir()
    with atomic_folder(out) as folder:
        fill(folder, "new")
        assert older.exists(), "it is the only whole one"
    assert os.listdir(tmp_path) == ["out"]


def test_the_later_of_two_finds_the_place_taken(tmp_path: Path) -> None:
    """Two runs side by side: each fills a folder of its own, the first to finish has it."""
    out = tmp_path / "out"
    first, second = atomic_folder(out), atomic_folder(out)
    one, two = first.__enter__(), second.__enter__()
    assert one != two
    fill(one, "one")
    fill(two, "two")
    second.__exit__(None, None, None)
    with pytest.raises(UserError, match="exists already"):
        first.__exit__(None, None, None)
    assert content(out) == "two"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("force", [False, True])
def test_a_place_taken_in_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool) -> None:
    """The other run's rename falls between our look and our rename: still one line, and one whole folder."""
    out, check = tmp_path / "out", lemur_core.files.atomic.check_free
    checked = []

    def look(path: Path, *, force: bool) -> None:
        check(path, force=force)
        checked.append(path)
        if len(checked) == 2 and not force:  # the look before the last rename
            out.mkdir()
            fill(out, "other")

    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        done = rename(self, target)
        if target.suffix == ".old":
            out.mkdir()
            fill(out, "other")
        return done

    if force:
        out.mkdir()
        fill(out, "old")
        monkeypatch.setattr(Path, "rename", late)
    monkeypatch.setattr(lemur_core.files.atomic, "check_free", look)

    def write() -> None:
        with atomic_folder(out, force=force) as folder:
            fill(folder, "mine")

    with pytest.raises(UserError, match=r"exists already|another run"):
        write()
    monkeypatch.undo()
    assert content(out) == "other"
    assert os.listdir(tmp_path) == ["out"]


def test_many_writers_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    texts = [str(number) * 50_000 for number in range(8)]

    def write(text: str) -> None:
        for _ in range(5):
            with atomic_file(path) as part:
                part.write_text(text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            assert path.read_text() in texts
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("variable", ["LEMUR_CURATOR_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("LEMUR_CURATOR_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    below = {"LEMUR_CURATOR_CACHE": "", "XDG_CACHE_HOME": "lemur-curator", "HOME": ".cache/lemur-curator"}[variable]
    assert cache_folder("search", "b") == tmp_path / below / "search" / "b"
    assert (tmp_path / below / "search" / "b").is_dir()


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set LEMUR_CURATOR_CACHE to a writable one"):
        cache_folder("features")


def everything(root: Path) -> dict[str, bytes | None]:
    return {p.relative_to(root).as_posix(): p.read_bytes() if p.is_file() else None for p in root.rglob("*")}


def test_several_files_together(tmp_path: Path, mask: None) -> None:
    (tmp_path / "old.py").write_bytes(b"old")
    (tmp_path / "old.py").chmod(0o755)
    write_together({tmp_path / "old.py": b"new\r\n", tmp_path / "a/b/c.py": b"made"})
    assert everything(tmp_path) == {"old.py": b"new\r\n", "a": None, "a/b": None, "a/b/c.py": b"made"}
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("old.py", "a/b/c.py")]
    assert modes == [0o755, 0o644]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_several_files_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    (tmp_path / "old.py").write_bytes(b"old")
    before, real, calls = everything(tmp_path), Path.replace, iter(range(9))

    def replace(self: Path, target: Path) -> Path:
        if self.suffix == ".part" and next(calls) == failing:
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    files = {tmp_path / "first.py": b"1", tmp_path / "old.py": b"new", tmp_path / "deep/last.py": b"3"}
    with pytest.raises(UserError, match=r"cannot be written: No space left on device; nothing was changed"):
        write_together(files)
    assert everything(tmp_path) == before


def test_a_file_in_the_way_of_a_folder_stops_all(tmp_path: Path) -> None:
    (tmp_path / "deep").write_bytes(b"a file")
    with pytest.raises(UserError, match="cannot be written"):
        write_together({tmp_path / "first.py": b"1", tmp_path / "deep/last.py": b"3"})
    assert everything(tmp_path) == {"deep": b"a file"}
