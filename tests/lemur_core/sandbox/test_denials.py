"""What a job must not reach: the network, the user's files, other processes. Each attempt is a real one, on a decoy."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from lemur_core.sandbox import Job, Sandbox, Status

Run = Callable[..., Any]

REFUSED = {"EPERM", "EACCES"}
#: bubblewrap does not show what it denies: a file is not there, a folder is read-only.
HIDDEN = REFUSED | {"ENOENT", "EROFS", "ENOTDIR", "ESRCH"}


def refusals(box: Sandbox) -> set[str]:
    return REFUSED if box.backend == "sandlock" else HIDDEN


@contextlib.contextmanager
def listeners(folder: Path) -> Iterator[tuple[dict[str, object], list[socket.socket]]]:
    """Listening sockets of every kind, and how a job is told of them."""
    with contextlib.ExitStack() as stack:
        ends = []
        abstract = f"\0lemur-{uuid.uuid4().hex}"
        for family, kind, address in (
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "s")),
            (socket.AF_UNIX, socket.SOCK_STREAM, abstract),
        ):
            end = stack.enter_context(socket.socket(family, kind))
            end.bind(address)
            end.setblocking(False)
            if kind == socket.SOCK_STREAM:
                end.listen()
            ends.append(end)
        told = {"tcp": ends[0].getsockname()[1], "udp": ends[1].getsockname()[1], "unix": str(folder / "s")}
        yield {**told, "abstract": abstract}, ends


def arrived(ends: list[socket.socket]) -> int:
    count = 0
    for end in ends:
        with contextlib.suppress(BlockingIOError):
            if end.type == socket.SOCK_STREAM:
                end.accept()[0].close()
            else:
                end.recv(1)
            count += 1
    return count


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder outside every scratch folder, with a short name (a socket's path is short)."""
    with tempfile.TemporaryDirectory(prefix="outside-") as name:
        yield Path(name)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user, in a session of its own, for attacks."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as process:
        yield process
        process.kill()


def test_network_is_out_of_reach(run: Run, run_open: Run, folder: Path) -> None:
    with listeners(folder) as (told, ends):
        found = run("network", **told).value
        assert found.pop("io_uring") in {"EPERM", "ENOSYS"}
        assert set(found.values()) <= REFUSED, found
        assert arrived(ends) == 0
        real = run_open("network", **told).value  # the attempts are real ones
        assert {real[kind] for kind in ("tcp", "udp", "unix", "abstract")} == {"done"}
        assert arrived(ends) == 4


def test_readable_places(run: Run, box: Sandbox, folder: Path) -> None:
    home = Path.home()
    with tempfile.NamedTemporaryFile(dir=home, prefix=".lemur-test-") as secret:
        secret.write(b"secret")
        secret.flush()
        assert run("read", path=secret.name).value in refusals(box)
    assert run("read", path=str(home)).value in refusals(box)
    (folder / "secret").write_text("secret")
    checkout = Path(__file__).resolve().parents[3]
    for path in (folder / "secret", checkout / "pyproject.toml", Path("/etc/passwd"), Path("/etc/hostname")):
        assert run("read", path=str(path)).value in refusals(box), path
    assert run("read", path=pytest.__file__).value in refusals(box), "it is no part of the declared runtime"
    for path in (os.__file__, numpy.__file__, sys.executable, "/proc/self/status", "/dev/urandom", "/proc/cpuinfo"):
        assert run("read", path=path).value == "done", path


def test_a_job_cannot_read_what_is_hidden_from_it(box: Sandbox, shown: Path) -> None:
    """Others can: before it, at the same time, and after it."""
    hidden = ((), (str(shown.parent),), ())
    jobs = [Job("", "attacks:read", {"path": str(shown)}, hidden=folders) for folders in hidden]
    before, refused, after = (outcome.value for outcome in box.run(jobs))
    assert (before, after) == ("done", "done")
    assert refused in refusals(box)


@pytest.mark.parametrize("readable", [False, True])
def test_files_outside_cannot_be_changed(
    run: Run, run_open: Run, box: Sandbox, folder: Path, shown: Path, readable: bool
) -> None:
    file = shown if readable else folder / "mine"
    file.write_text("content")
    file.chmod(0o640)
    before = file.stat()
    assert (run("read", path=str(file)).value == "done") == readable
    found = run("meddle", file=str(file)).value
    assert set(found.values()) <= refusals(box) | {"EXDEV"}, found  # a link or a move between different places
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name]
    assert file.read_text() == "content"
    after = file.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ino) == (before.st_mode, before.st_mtime_ns, before.st_ino)
    if not readable:
        done = {name for name, result in run_open("meddle", file=str(file)).value.items() if result == "done"}
        assert {"write", "append", "truncate", "open to truncate", "create", "chmod", "times", "rename"} <= done


@pytest.mark.parametrize("name", ["net/tcp", "net/unix", "net/dev", "mountinfo", "mounts", "cgroup", "environ", "task"])
def test_the_machine_is_not_shown(run: Run, box: Sandbox, name: str) -> None:
    if box.backend == "bubblewrap":
        pytest.skip("there, a job sees its own namespaces")
    assert run("read", path=f"/proc/self/{name}").value in REFUSED


def test_shared_memory_devices_and_server_are_out_of_reach(run: Run, box: Sandbox) -> None:
    name = f"lemur-{uuid.uuid4().hex}"
    found = run("devices", name=name).value
    assert set(found.values()) <= refusals(box) | {"ENXIO"}, found
    assert not Path("/dev/shm", name).exists()
    found = run("attack_server").value
    if box.backend == "bubblewrap":  # the numbers of the server's open files can be listed there; none can be opened
        found.pop("descriptors")
    assert set(found.values()) <= REFUSED, found


def test_other_processes_are_out_of_reach(
    run: Run, run_open: Run, box: Sandbox, other: subprocess.Popen[bytes]
) -> None:
    target = {"process": other.pid, "group": os.getpgid(other.pid)}
    found = run("other_processes", **target).value
    assert found.pop("descriptor") in {"EPERM", "ENOSYS"}
    assert set(found.values()) <= refusals(box), found
    assert other.poll() is None
    assert run_open("other_processes", **target).value["kill"] == "done"
    assert other.wait(5) == -signal.SIGTERM


def test_no_new_processes_and_confinement_cannot_be_undone(run: Run, run_open: Run) -> None:
    found = run("undo_confinement").value
    assert found.pop("core") == [0, 0, 1], "no core dumps; dumpable, so that the server sees its open files"
    assert (found.pop("privileges"), found.pop("capabilities")) == (1, 0)
    assert set(found.values()) <= {"EPERM"}, found
    assert run("lift_limits").value == []
    outcome = run("new_process")
    assert outcome.value == dict.fromkeys(("fork", "subprocess", "posix_spawn", "exec"), "EPERM"), outcome
    outcome = run("daemonise", seconds=20)
    assert (outcome.status, outcome.error.partition(":")[0]) == (Status.DENIED, "PermissionError")
    daemon = run_open("daemonise", seconds=20).value  # dies even if unconfined
    with pytest.raises(ProcessLookupError):
        os.kill(daemon, 0)


def test_environment_is_scrubbed_and_scratch_can_be_used(run: Run) -> None:
    found = run("describe").value
    environment = found["environment"]
    assert environment["HOME"] == environment["TMPDIR"] == found["temporary"] == found["folder"]
    assert environment["PYTHONHASHSEED"] == "0"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert set(environment) <= {
        *("PATH", "LANG", "HOME", "TMPDIR", "USER", "LOGNAME", "LD_LIBRARY_PATH", "LC_CTYPE", "PWD"),
        *("PYTHONHASHSEED", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "PYTHONUSERBASE", "MALLOC_ARENA_MAX"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
        *("CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE"),
    }
    assert found["stdin"] == ""
    assert len(found["descriptors"]) == 5  # the three standard ones, the result's, and the listing's own
    assert run("write_scratch").value == "hello"


HERE = Path(__file__).parent
ROOT = HERE.parents[2]
OURS = ("curate", "extract", "lemur", "lemur_core", "manifests", "train")


@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize("installed", [False, True], ids=["checkout", "wheel"])
def test_no_package_of_ours_can_be_imported(tmp_path: Path, installed: bool, unsafe: bool) -> None:
    """Those of a wheel lie on the path and can be read; another's package of the same name is found."""
    for name in ("train", "extract"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    path = [HERE, ROOT] if installed else [HERE]
    readable = [tmp_path, *(ROOT / name for name in OURS if installed)]
    payload: dict[str, object] = {"names": OURS}
    jobs = [Job("", "attacks:import_packages", payload | more) for more in ({}, {"folders": [str(tmp_path)]})]
    # This entry lies in a package of ours, which is imported before the jobs are.
    entries = ["lemur_core.sandbox.server.foreign:one_line", "attacks:import_packages"]
    with Sandbox(preload=(), sys_path=path, readable=readable, entries=entries, unsafe=unsafe) as box:
        none, theirs = box.run(jobs)
    assert none.value == dict.fromkeys(OURS, ""), none.error
    other = {name: str(tmp_path / name / "__init__.py") for name in ("train", "extract")}
    assert theirs.value == dict.fromkeys(OURS, "") | other
