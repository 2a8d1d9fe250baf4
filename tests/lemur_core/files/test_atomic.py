"""Files and folders are whole or absent: failures leave what was there, and nothing else."""

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lemur_core.files.atomic
from lemur_core.files.atomic import (
    atomic_file,
    atomic_folder,
    check_free,
    hold_lock,
    remove_dead,
    scratch_folder,
    sha256_file,
    unfinished_name,
    write_text,
    write_together,
)
from lemur_core.files.errors import UserError
from manifests.folders.manifest import Manifest, Output, Stopwatch, read_manifest, write_manifest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rename and permission rules of POSIX")


@pytest.fixture(autouse=True)
def mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def fill(folder: Path, content: str, *more: str) -> None:
    digest = hashlib.sha256(content.encode()).hexdigest()
    for name in ("data/file", *more):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    outputs = [Output(path=path, sha256=digest, bytes=1) for path in ("data/file", *more)]
    about = {"versions": {}, "inputs": [], "counts": {}, "details": {}, "measured": Stopwatch().measure()}
    write_manifest(folder, Manifest(kind="snapshot", parameters={"content": content}, outputs=outputs, **about))


def content(folder: Path) -> str:
    first = (folder / "data" / "file").read_text()
    assert read_manifest(folder).parameters == {"content": first}
    return first


def replace(out: Path, text: str, *more: str, force: bool = True, last: Callable[[], object] = lambda: None) -> None:
    with atomic_folder(out, force=force) as folder:
        fill(folder, text, *more)
        last()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def everything(root: Path) -> dict[str, bytes | None]:
    return {p.relative_to(root).as_posix(): p.read_bytes() if p.is_file() else None for p in root.rglob("*")}


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "f.txt"
    for text in ("one", "two"):
        with atomic_file(path) as part:
            assert part.parent == path.parent
            part.write_text(text)
            assert not path.exists() or path.read_text() != text
        assert path.read_text() == text
        assert sha256_file(path) == hashlib.sha256(text.encode()).hexdigest()
    assert (mode(path), os.listdir(path.parent)) == (0o644, ["f.txt"])
    path.chmod(0o755)
    write_text(path, "three")
    assert mode(path) == 0o755
    for below in (path / "g.txt", path / "deeper" / "g.txt"):
        with pytest.raises((NotADirectoryError, FileExistsError), match=r"f\.txt"), atomic_file(below):
            pass


def test_a_folder_and_its_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "deep" / "out"
    with atomic_folder(Path("deep/out")) as folder:
        assert not out.exists()
        assert folder.parent == out.parent
        fill(folder, "one", "only-one")
        monkeypatch.chdir(tmp_path.parent)  # the path is that of the beginning
    assert (content(out), mode(out), os.listdir(out.parent)) == ("one", 0o755, ["out"])
    replace(
        out, "two", "only-two", last=lambda: content(out) == "one" or pytest.fail("the old one stays until the end")
    )
    assert (content(out), sorted(os.listdir(out))) == ("two", ["data", "manifest.json", "only-two"])
    (tmp_path / "empty").mkdir()
    replace(tmp_path / "empty", "one", force=False)
    link = tmp_path / "link"
    link.symlink_to(out)
    replace(link, "three")
    assert (content(link), link.is_symlink(), content(out)) == ("three", False, "two"), "what a link led to is not ours"
    assert sorted(os.listdir(tmp_path)) == ["deep", "empty", "link"]


NOT_OURS = "its manifest.json is unreadable, damaged or another program's, so remove the folder yourself, or choose"


@pytest.mark.parametrize(
    "manifest",
    [
        '{"manifest_version": 3, "name": "An extension", "version": "1.0"}',
        '{"kind": "snapshot", "versions": {"lemur-curator": "1"}}',
        '{"versions": {"lemur-curator": "1"}, "outputs": [{"path": "index.js"}]}',
        *('["index.js"]', "{", "[" * 100_000),
    ],
)
def test_a_folder_of_another_program_is_not_replaced(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    (tmp_path / "index.js").write_text("precious")
    with pytest.raises(UserError) as caught:
        check_free(tmp_path, force=True)
    assert str(caught.value) == f"{tmp_path}: {NOT_OURS} another --out"


def test_a_folder_with_files_of_others_is_not_replaced(tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "precious.txt"
    (out / "page").mkdir(parents=True)
    fill(out, "old", "blocks/a.py")
    stated = json.loads((out / "manifest.json").read_text())
    stated["outputs"] += [{**stated["outputs"][0], "path": path} for path in ("../precious.txt", str(outside))]
    (out / "manifest.json").write_text(json.dumps(stated))  # it may state what it likes
    outside.write_text("precious")
    (out / "page/files.json").touch()

    def add(name: str) -> Path:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("precious")
        return out / name

    for name in ("index.html", "page/000.js", "blocks/__pycache__/a.cpython-311.pyc", "__pycache__/b.pyc"):
        add(name)
    (out / "empty").mkdir()
    check_free(out, force=True)
    with pytest.raises(UserError, match=f"is inside {out}, which is finished; choose another --out"):
        check_free(out / "empty" / "sub", force=True)
    for name in ("notes.txt", ".env", "page/notes.js", "data/mine/a.txt", "blocks/__pycache__/b.py", "a.pyc"):
        path = add(name)
        with pytest.raises(UserError) as caught:
            check_free(out, force=True)
        others = f"{out}: holds {name}, which lemur did not write; move it elsewhere, or choose another --out"
        assert str(caught.value) == others
        path.unlink()
    for target in (outside, tmp_path, "nowhere"):
        (out / "link").symlink_to(target)
        with pytest.raises(UserError, match="holds link, which lemur did not write"):
            check_free(out, force=True)
        (out / "link").unlink()
    two = add("a\x1b[2J\n.txt"), add("z.txt")
    with pytest.raises(UserError, match=r"holds a\\x1b\[2J\\n\.txt and 1 more, which"):
        check_free(out, force=True)
    for path in two:
        path.unlink()
    (out / "data/file").write_text("edited by hand")
    with pytest.raises(UserError, match=r"holds meanwhile"):
        replace(out, "new", last=lambda: add("meanwhile"))
    (out / "meanwhile").unlink()
    replace(out, "new")
    assert (content(out), outside.read_text(), set(os.listdir(out))) == ("new", "precious", {"data", "manifest.json"})
    assert sorted(os.listdir(tmp_path)) == ["out", "precious.txt"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("older", [True, False])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: type[BaseException], older: bool) -> None:
    out, file = tmp_path / "out", tmp_path / "f.txt"
    if older:
        out.mkdir()
        fill(out, "old")
        file.write_text("old")

    def fail() -> None:
        raise error

    with pytest.raises(error):
        replace(out, "new", last=fail)
    with pytest.raises(error), atomic_file(file):
        fail()
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

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(OSError, match="Input/output"):
        replace(out, "new")
    assert (content(out), os.listdir(tmp_path)) == ("old", ["out"])


FILE = "is a file, not a folder; choose another --out"
THERE = "exists already; choose another --out, or add --force to replace it"
NONE = "has no manifest.json, so lemur did not write it; choose another --out"


@pytest.mark.parametrize(
    ("name", "force", "message"),
    [
        *(("file", False, FILE), ("file", True, FILE), ("dangling", False, FILE)),
        *(("full", False, THERE), ("full", True, NONE), ("/", False, THERE)),
    ],
)
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


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    killed = "import os, signal, sys\nfrom pathlib import Path\nfrom lemur_core.files.atomic import atomic_folder\n"
    killed += "with atomic_folder(Path(sys.argv[1])) as part:\n"
    killed += "    (part / 'half').touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
    out, moved_aside = tmp_path / "out [1]", tmp_path / ".out [1].lemur-abcdefgh.old"
    root = str(Path(__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", killed, str(out)], env={"PYTHONPATH": root}, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    moved_aside.mkdir()
    others = [tmp_path / f".{out.name}.{name}" for name in ("somebody.part", "abcdefgh.part", "mine.old")]
    others.append(tmp_path / left.name.replace("lemur-", "lemur-0"))  # of another machine or container
    for other in others:
        other.mkdir()
        (other / "precious").touch()
    with atomic_folder(out) as living:
        fill(living, "one")
        assert not left.exists()
        assert moved_aside.exists(), "it is the only whole one"
        with atomic_folder(out) as later:
            assert living.exists(), "its process lives"
            fill(later, "two")
        assert not moved_aside.exists()
        shutil.rmtree(out)
    assert content(out) == "one"
    assert sorted(tmp_path.iterdir()) == sorted([*others, out])


def test_a_link_in_the_place_of_what_a_dead_process_left_is_not_followed(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with scratch_folder("name", parent=tmp_path) as made:
        (made / "precious").touch()
        dead = unfinished_name("x").replace(f"-{os.getpid()}-", f"-{gone.pid}-")
        (tmp_path / dead).symlink_to(made)
        (tmp_path / dead.replace(".x.", ".y.")).mkdir()
        remove_dead(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([made, tmp_path / dead])
        assert (made / "precious").exists()
    assert not made.exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_place_taken_in_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool) -> None:
    """Two runs side by side fill folders of their own; the first to finish has the place, the other one gets a line."""
    out, check, rename = tmp_path / "out", lemur_core.files.atomic._check_replaceable, Path.rename
    with pytest.raises(UserError, match="exists already"):
        replace(out, "one", force=False, last=lambda: replace(out, "two", force=False))
    assert (content(out), os.listdir(tmp_path)) == ("two", ["out"])
    checked = []

    def look(path: Path, *, force: bool) -> None:
        check(path, force=force)
        checked.append(path)
        if len(checked) == 2 and not force:  # the look before the last rename
            out.mkdir()
            fill(out, "other")

    def late(self: Path, target: Path) -> Path:
        done = rename(self, target)
        if target.suffix == ".old":
            out.mkdir()
            fill(out, "other")
        return done

    if force:
        monkeypatch.setattr(Path, "rename", late)
    else:
        shutil.rmtree(out)
    monkeypatch.setattr(lemur_core.files.atomic, "_check_replaceable", look)
    with pytest.raises(UserError, match="another run has put its output there"):
        replace(out, "mine", force=force)
    monkeypatch.undo()
    assert (content(out), os.listdir(tmp_path)) == ("other", ["out"])


def test_a_folder_is_held_by_one_run(tmp_path: Path) -> None:
    folder, told = tmp_path / "deep" / "out", rf"another run works there \(host \S+, process {os.getpid()}, since \S+\)"
    for _ in range(2):
        with hold_lock(folder / ".lock", folder, "another run works there"):
            with pytest.raises(UserError, match=f"out: {told}; wait for it, or choose another --out"):
                hold_lock(folder / ".lock", folder, "another run works there").__enter__()
            other = f"import fcntl\nfcntl.flock(open({str(folder / '.lock')!r}, 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
            assert b"BlockingIOError" in subprocess.run([sys.executable, "-c", other], stderr=subprocess.PIPE).stderr
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/out: cannot be written: Not a directory; choose another --out"):
        hold_lock(tmp_path / "file/out/.lock", tmp_path / "file/out", "").__enter__()


def test_many_writers_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    texts = [str(number) * 50_000 for number in range(8)]
    write_text(path, texts[0])
    with ThreadPoolExecutor() as pool:
        writing = [pool.submit(write_text, path, text) for text in texts * 5]
        while not all(one.done() for one in writing):
            assert path.read_text() in texts
    assert [one.result() for one in writing] == [None] * 40
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("failing", [0, 1, 2, 3])
def test_several_files_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """Also where a file is in the way of a folder."""
    (tmp_path / "old.py").write_bytes(b"old")
    (tmp_path / "old.py").chmod(0o755)
    before, real, calls = everything(tmp_path), Path.replace, iter(range(9))

    def fail(self: Path, target: Path) -> Path:
        if next(calls) == failing:
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    files = {tmp_path / "first.py": b"1", tmp_path / "old.py": b"new\r\n", tmp_path / "a/b/last.py": b"3"}
    if failing < 3:
        with pytest.raises(UserError, match=r"cannot be written: No space left on device; nothing was changed"):
            write_together(files)
        assert everything(tmp_path) == before
        with pytest.raises(UserError, match=r"cannot be written"):
            write_together({tmp_path / "first.py": b"1", tmp_path / "old.py/last.py": b"3"})
        assert everything(tmp_path) == before
    else:
        write_together(files)
        after = {"first.py": b"1", "old.py": b"new\r\n", "a": None, "a/b": None, "a/b/last.py": b"3"}
        assert (everything(tmp_path), mode(tmp_path / "old.py")) == (after, 0o755)
