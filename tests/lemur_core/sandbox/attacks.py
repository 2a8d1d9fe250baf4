"""What foreign code might try, as entries of jobs. Each is harmless even where nothing stops it: it touches only what the
test made for it, sends only signals that the test expects, and stops by itself after a bounded effort.
"""

import atexit
import contextlib
import ctypes
import errno
import importlib
import mmap
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

Payload = dict[str, object]
_libc = ctypes.CDLL(None, use_errno=True)


def _try(action: Callable[[], object]) -> str:
    """The name of the error, or "done"."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "no number")
    return "done"


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def _syscall(number: int, *arguments: object) -> None:
    if _libc.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), f"syscall {number}")


def double(payload: Payload) -> object:
    return {"doubled": int(str(payload["x"])) * 2}


def sleep(payload: Payload) -> object:
    time.sleep(float(str(payload["seconds"])))
    return payload.get("x")


def describe(payload: Payload) -> object:
    return {
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "temporary": __import__("tempfile").gettempdir(),
        "stdin": os.read(0, 1).decode(),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "parent": os.getppid(),
        "process": os.getpid(),
    }


def write_scratch(payload: Payload) -> object:
    Path("sub").mkdir()
    Path("sub/file").write_text("hello")
    Path("sub/file").rename("moved")
    Path("link").symlink_to("moved")
    text = Path("link").read_text()
    Path("moved").unlink()
    return text


def keep(payload: Payload) -> object:
    """What is in the working folder; then a file more, or a link to somewhere."""
    found = sorted(os.listdir())
    if "link" in payload:
        Path("link").symlink_to(str(payload["link"]))
    else:
        Path(str(payload["name"])).write_text("kept")
    time.sleep(float(str(payload.get("seconds", 0))))
    return found


def write_at(payload: Payload) -> object:
    return {path: _try(lambda path=path: Path(path).write_text("not yours")) for path in payload["paths"]}  # type: ignore[attr-defined]


def read(payload: Payload) -> object:
    path = Path(str(payload["path"]))
    return _try(lambda: os.listdir(path) if path.is_dir() else path.open("rb").read(1))


def print_text(payload: Payload) -> object:
    print(payload["out"], flush=True)
    print(payload["err"], file=sys.stderr)
    return None


def neighbours(payload: Payload) -> object:
    """The scratch folders of other jobs that this one can list."""
    time.sleep(0.3)
    found = []
    for folder in (Path.cwd().parent, Path(str(payload["root"]))):
        with contextlib.suppress(OSError):
            found += [str(path) for path in folder.rglob("job-*") if path != Path.cwd()]
    return found


def torch_step(payload: Payload) -> object:
    import torch

    torch.set_num_threads(2)
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    layer(torch.randn(4, 3, 64, 64)).square().mean().backward()
    gradients = [parameter.grad for parameter in layer.parameters()]
    torch.save(layer.state_dict(), "weights.pt")
    torch.load("weights.pt", weights_only=True)
    return all(gradient is not None and bool(torch.isfinite(gradient).all()) for gradient in gradients)


def network(payload: Payload) -> object:
    port, udp, path, abstract = (payload[name] for name in ("tcp", "udp", "unix", "abstract"))

    def connect(family: int, kind: int, address: object) -> Callable[[], object]:
        def action() -> None:
            with socket.socket(family, kind) as end:
                end.settimeout(2)
                end.connect(address)  # type: ignore[arg-type]
                end.send(b"x")

        return action

    return {
        "tcp": _try(connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port))),
        "udp": _try(connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", udp))),
        "tcp6": _try(connect(socket.AF_INET6, socket.SOCK_STREAM, ("::1", port))),
        "unix": _try(connect(socket.AF_UNIX, socket.SOCK_STREAM, path)),
        "abstract": _try(connect(socket.AF_UNIX, socket.SOCK_STREAM, abstract)),
        "netlink": _try(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()),
        "pair": _try(lambda: [end.close() for end in socket.socketpair()]),
        "io_uring": _try(lambda: _syscall(425, 1, ctypes.create_string_buffer(120))),
    }


def meddle(payload: Payload) -> object:
    file = Path(str(payload["file"]))
    return {
        "write": _try(lambda: file.open("r+b").close()),
        "append": _try(lambda: file.open("ab").close()),
        "truncate": _try(lambda: os.truncate(file, 0)),
        "open to truncate": _try(lambda: os.close(os.open(file, os.O_RDONLY | os.O_TRUNC))),
        "create": _try(lambda: (file.parent / "made").touch()),
        "make a folder": _try(lambda: (file.parent / "made").mkdir()),
        "link in": _try(lambda: os.link(file, "linked")),
        "chmod": _try(lambda: file.chmod(0o777)),
        "chown": _try(lambda: os.chown(file, os.getuid(), os.getgid())),
        "times": _try(lambda: os.utime(file, (0, 0))),
        "attribute": _try(lambda: os.setxattr(file, "user.lemur", b"x")),
        "rename": _try(lambda: file.rename(file.parent / "moved")),
        "replace": _try(lambda: (Path("own").touch(), Path("own").rename(file))),
        "unlink": _try(lambda: file.unlink()),
    }


def devices(payload: Payload) -> object:
    return {
        "shared memory": _try(lambda: Path("/dev/shm", str(payload["name"])).touch()),
        "tty": _try(lambda: os.close(os.open("/dev/tty", os.O_RDWR))),
        "node": _try(lambda: os.mknod("node", 0o20600, os.makedev(1, 3))),
        "fifo": _try(lambda: os.mkfifo("fifo")),
        "mount": _try(lambda: _call("mount", b"none", b".", b"tmpfs", 0, None)),
        "chroot": _try(lambda: os.chroot(".")),
        "memfd": _try(lambda: os.close(os.memfd_create("x"))),
    }


def other_processes(payload: Payload) -> object:
    """Signals, tracing, memory and limits of the process that the test started for this."""
    other = int(str(payload["process"]))
    group = int(str(payload["group"]))
    return {
        "kill": _try(lambda: os.kill(other, signal.SIGTERM)),
        "kill the group": _try(lambda: os.killpg(group, signal.SIGTERM)),
        "kill all": _try(lambda: os.kill(-1, 0)),
        "thread kill": _try(lambda: _syscall(200, other, signal.SIGTERM)),
        "queue": _try(lambda: _syscall(129, other, signal.SIGTERM, ctypes.create_string_buffer(128))),
        "descriptor": _try(lambda: os.close(os.pidfd_open(other))),
        "signal by input": _try(lambda: __import__("fcntl").fcntl(os.pipe()[0], 8, other)),  # F_SETOWN
        "trace": _try(lambda: _call("ptrace", 0x4206, other, 0, 0)),  # PTRACE_SEIZE: does not stop it
        "memory": _try(lambda: Path(f"/proc/{other}/mem").open("rb").close()),
        "environment": _try(lambda: Path(f"/proc/{other}/environ").read_bytes()),
        "limits": _try(lambda: resource.prlimit(other, resource.RLIMIT_CORE, (0, 0))),
        "priority": _try(lambda: os.setpriority(os.PRIO_PROCESS, other, 19)),
        "affinity": _try(lambda: os.sched_setaffinity(other, {0})),
        "read memory": _try(lambda: _syscall(310, other, None, 0, None, 0, 0)),
    }


def attack_server(payload: Payload) -> object:
    server = os.getppid()
    return {
        "signal": _try(lambda: os.kill(server, signal.SIGTERM)),
        "trace": _try(lambda: _call("ptrace", 0x4206, server, 0, 0)),
        "memory": _try(lambda: Path(f"/proc/{server}/mem").open("rb").close()),
        "environment": _try(lambda: Path(f"/proc/{server}/environ").read_bytes()),
        "descriptors": _try(lambda: os.listdir(f"/proc/{server}/fd")),
    }


def kill_server(payload: Payload) -> object:
    """Only for an unconfined sandbox: its server belongs to the test."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(5)
    return "the server lived"


def _fork() -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


def new_process(payload: Payload) -> object:
    return {
        "fork": _try(_fork),
        "subprocess": _try(lambda: subprocess.run(["/bin/true"], check=True)),
        "posix_spawn": _try(lambda: os.posix_spawn("/bin/true", ["true"], {})),
        "exec": _try(lambda: os.execv("/bin/false", ["false"])),
    }


def daemonise(payload: Payload) -> object:
    """Leave a process of another session behind, which would sleep for a while."""
    ends = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if (daemon := os.fork()) == 0:
            os.closerange(ends[0], ends[1] + 1)
            time.sleep(float(str(payload["seconds"])))
        else:
            os.write(ends[1], str(daemon).encode())
        os._exit(0)
    return int(os.read(ends[0], 32))


def allocate(payload: Payload) -> object:
    library = importlib.import_module(str(payload["library"]))
    kept = [library.ones(256 * 2**20, dtype=library.uint8) for _ in range(16)]
    return len(kept)


def allocate_shared(payload: Payload) -> object:
    kept = []
    for _ in range(16):
        block = mmap.mmap(-1, 256 * 2**20)
        for page in range(0, len(block), 4096):
            block[page] = 1
        kept.append(block)
    return len(kept)


def spin(payload: Payload) -> object:
    """Use CPU for at most 20 seconds, deaf to the warning signal."""
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass
    return "done"


def many_threads(payload: Payload) -> object:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait, args=(3,), daemon=True) for _ in range(200)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    stop.set()
    return len(threads)


def fill_files(payload: Payload) -> object:
    """Write files of 8 MiB until an error, half a gigabyte at most."""
    for number in range(64):
        os.close(_fill(_make(f"file{number}"), 8))
        time.sleep(0.02)
    return "done"


def fill_one_file(payload: Payload) -> object:
    return {"result": _try(lambda: _fill(_make("large"), 256)), "size": Path("large").stat().st_size}


def remove_scratch(payload: Payload) -> object:
    """Remove the working folder. Only possible if unconfined."""
    error = _try(lambda: Path.cwd().rmdir())
    time.sleep(0.5)
    return error


def many_files(payload: Payload) -> object:
    for number in range(200_000):
        Path(f"f{number}").touch()
    return "done"


def _fill(file: int, mebibytes: int) -> int:
    for _ in range(mebibytes):
        os.write(file, bytes(2**20))
    return file


def _make(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _unnamed(mebibytes: int) -> int:
    file = _make("gone")
    Path("gone").unlink()
    return _fill(file, mebibytes)


def _mapped(mebibytes: int) -> mmap.mmap:
    """One page of a file that has neither a name nor is open."""
    file = _unnamed(mebibytes)
    try:
        return mmap.mmap(file, 4096)
    finally:
        os.close(file)


def _replaced(mebibytes: int) -> int:
    """A file whose name is then another file's."""
    file = _fill(_make("one"), mebibytes)
    Path("other").touch()
    Path("other").rename("one")
    return file


def _beyond_every_path(mebibytes: int) -> int:
    """An open file whose name was in a folder that is no more, with a path longer than the kernel tells."""
    start = os.open(".", os.O_RDONLY)
    for _ in range(50):
        Path("d" * 100).mkdir()
        os.chdir("d" * 100)
    file = _unnamed(mebibytes)
    for _ in range(50):
        os.chdir("..")
        Path("d" * 100).rmdir()
    os.fchdir(start)
    os.close(start)
    return file


def _hidden(mebibytes: int) -> None:
    """A file in a folder that only its maker can find."""
    os.umask(0)
    Path("hidden").mkdir(mode=0o300, exist_ok=True)
    os.close(_fill(_make(f"hidden/{time.monotonic_ns()}"), mebibytes))


def _moving(mebibytes: int) -> None:
    """Files in a folder whose name changes all the time."""
    Path("a").mkdir(exist_ok=True)
    os.close(_fill(_make(f"a/{time.monotonic_ns()}"), mebibytes))
    for _ in range(200):
        Path("a").rename("b")
        Path("b").rename("a")


def _sparse_then_filled(mebibytes: int) -> mmap.mmap:
    """A file that takes no space until its mapped pages are written."""
    file = _make(f"{time.monotonic_ns()}")
    os.ftruncate(file, mebibytes * 2**20)
    pages = mmap.mmap(file, mebibytes * 2**20)
    os.close(file)
    for at in range(0, len(pages), 4096):
        pages[at] = 1
    return pages


HIDING: dict[object, Callable[[int], object]] = {
    "without a name": _unnamed,
    "never named": lambda mebibytes: _fill(os.open(".", os.O_RDWR | os.O_TMPFILE, 0o600), mebibytes),
    "mapped": _mapped,
    "replaced": _replaced,
    "beyond every path": _beyond_every_path,
    "closed folder": _hidden,
    "moving folder": _moving,
    "filled later": _sparse_then_filled,
}


def hide_files(payload: Payload) -> object:
    """Fill 160 MiB where a look at names and sizes does not see them, and stay for a moment."""
    kept = []
    for _ in range(20):
        kept.append(HIDING[payload["how"]](8))
        time.sleep(0.02)
    time.sleep(1.5)
    return len(kept)


def allocate_at_once(payload: Payload) -> object:
    with Path("large").open("wb") as file:
        return _try(lambda: _call("fallocate", file.fileno(), 0, ctypes.c_long(0), ctypes.c_long(8 * 2**20)))


def small_use(payload: Payload) -> object:
    """What a decent job does: a sparse file, a temporary file, many names of one file. It takes little space."""
    with Path("sparse").open("wb") as file:
        file.truncate(48 * 2**20)
    kept = _unnamed(2)
    for number in range(100):
        os.link("sparse", f"link{number}")
    time.sleep(0.5)
    os.close(kept)
    return "done"


def many_descriptors(payload: Payload) -> object:
    kept: list[int] = []
    error = _try(lambda: [kept.append(os.open("/dev/null", os.O_RDONLY)) for _ in range(2000)])
    return {"error": error, "opened": len(kept)}


def nest(payload: Payload) -> object:
    name = "d" * int(str(payload["name"]))
    for _ in range(int(str(payload["levels"]))):
        Path(name).mkdir()
        Path("file").touch()
        os.chdir(name)
    time.sleep(float(str(payload["seconds"])))
    return "done"


def nested_value(payload: Payload) -> object:
    """A value that can be written but not read, for its depth."""
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    sys.setrecursionlimit(10**6)
    return value


def flood(payload: Payload) -> object:
    for _ in range(500):
        os.write(1, b"x" * 65536)
        os.write(2, b"x" * 65536)
    return "done"


def _every_descriptor(data: bytes, first: int = 0) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= first:
            _try(lambda name=name: os.write(int(name), data))  # type: ignore[misc]


_FLOODS: dict[object, Callable[[], object]] = {
    "blocks": lambda: os.write(1, b"x" * 65536),
    "bytes": lambda: os.write(1, b"x"),
    "both": lambda: (os.write(1, b"x" * 3000), os.write(2, b"x")),
    "result": lambda: _every_descriptor(b"x", 3),
}


def flood_always(payload: Payload) -> object:
    """Write as long as it may, for no longer than a minute."""
    flood, end = _FLOODS[payload["how"]], time.monotonic() + 60
    while time.monotonic() < end:
        flood()
    return "done"


def _make_timer() -> None:
    _call("timer_create", 1, None, ctypes.byref(ctypes.c_void_p()))


def _queue(send: Callable[[int], object]) -> None:
    number = signal.SIGRTMIN + 1
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    send(number)


_QUEUED: dict[object, Callable[[], object]] = {
    "timers": _make_timer,
    "signals": lambda: _queue(lambda number: os.kill(os.getpid(), number)),
    "signals to a thread": lambda: _queue(lambda number: signal.pthread_kill(threading.get_ident(), number)),
}


def fill_queue(payload: Payload) -> object:
    """Queue some signals of the user's, or take their places; return how many places of how many are taken then."""
    for _ in range(2000):
        _try(lambda: _QUEUED[payload["how"]]())
    return re.search(r"SigQ:\s+(\d+)/(\d+)", Path("/proc/self/status").read_text()).groups()  # type: ignore[union-attr]


def large_value(payload: Payload) -> object:
    return "x" * int(str(payload["bytes"]))


def lift_limits(payload: Payload) -> object:
    lifted = []
    for name in ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_CORE", "RLIMIT_NOFILE"):
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (hard + 1, hard + 1))
            lifted.append(name)
    return lifted


def undo_confinement(payload: Payload) -> object:
    """Ask the kernel for back what was given up."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "core": [*resource.getrlimit(resource.RLIMIT_CORE), _libc.prctl(3, 0, 0, 0, 0)],
        "dumpable": _try(lambda: _call("prctl", 4, 1, 0, 0, 0)),
        "death signal": _try(lambda: _call("prctl", 1, 0, 0, 0, 0)),
        "namespace": _try(lambda: _call("unshare", 0x10000000)),
        "user": _try(lambda: os.setuid(os.getuid())),
        "seccomp": _try(lambda: _syscall(317, 1, 0, None)),
        "privileges": int(status["NoNewPrivs"]),
        "capabilities": int(status["CapEff"], 16),
    }


def _nap() -> None:
    while True:
        time.sleep(0.01)


def _wait_for_child() -> None:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    os.wait()


def _wait_for_each_other() -> None:
    one, other = threading.Lock(), threading.Lock()
    one.acquire()
    threading.Thread(target=lambda: (other.acquire(), one.acquire()), daemon=True).start()
    time.sleep(0.2)
    other.acquire()


_WAITS: dict[object, Callable[[], object]] = {
    "sleep": lambda: time.sleep(10**6),
    "lock": lambda: [lock.acquire() for lock in [threading.Lock()] * 2],
    "each other": _wait_for_each_other,
    "pipe": lambda: os.read(os.pipe()[0], 1),
    "select": lambda: __import__("select").select([os.pipe()[0]], [], []),
    "signal": signal.pause,
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "file lock": lambda: [__import__("fcntl").flock(os.open("f", os.O_CREAT), 2) for _ in range(2)],
    "thread": lambda: threading.Thread(target=time.sleep, args=(10**6,), daemon=True).run(),
    "naps": _nap,
    "child": _wait_for_child,
}


def wait(payload: Payload) -> object:
    return _WAITS[payload["how"]]()


def work_in_child(payload: Payload) -> object:
    """Wait for a process that computes. Only possible if unconfined."""
    if (child := os.fork()) == 0:
        while time.process_time() < float(str(payload["seconds"])):
            pass
        os._exit(0)
    os.waitpid(child, 0)
    return "done"


_LEAVE: dict[object, Callable[[int], object]] = {
    "_exit": os._exit,
    "sys.exit": sys.exit,
    "thread": lambda code: (threading.Thread(target=os._exit, args=(code,), daemon=True).start(), time.sleep(5)),
    "atexit": lambda code: (atexit.register(os._exit, 0), sys.exit(code)),
    "segfault": lambda _: ctypes.string_at(0),
    "abort": lambda _: os.abort(),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "close": lambda _: os.closerange(0, 2000),
}


def leave(payload: Payload) -> object:
    if payload["how"] == "interrupt":
        raise KeyboardInterrupt
    _LEAVE[payload["how"]](int(str(payload.get("code", 0))))
    return "stayed"


def harmless_leftovers(payload: Payload) -> object:
    """Exit handlers and threads that would spoil a clean end."""
    atexit.register(os._exit, 3)
    threading.Thread(target=time.sleep, args=(20,)).start()
    return "clean"


def forge(payload: Payload) -> object:
    """Write a result of its own wherever it can, then leave as if all were well."""
    body = b'{"status": "ok", "value": "forged", "error": ""}'
    _every_descriptor(bytes(16) + len(body).to_bytes(8, "big") + body)
    if payload["leave"]:
        os._exit(0)
    return "wrote"


def patch_modules(payload: Payload) -> object:
    """Replace what the sandbox might use to report."""
    os.write = lambda *_: 0
    os._exit = lambda *_: None  # type: ignore[assignment]
    __import__("json").dumps = lambda *_, **__: '{"status": "ok", "value": "forged", "error": ""}'
    return "true value"


def odd_value(payload: Payload) -> object:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no name")

    return {"what": Odd()} if payload["kind"] == "object" else {1, 2}


def fail(payload: Payload) -> object:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    kind = payload["kind"]
    if kind == "value":
        raise ValueError("a clear message")
    if kind == "odd":
        raise OddError
    if kind == "chained":
        try:
            Path("/root-of-nothing").mkdir()
        except OSError as error:
            raise RuntimeError("could not cache") from error
    if kind == "recursion":
        return fail(payload)
    return None


def import_packages(payload: Payload) -> object:
    """By name, the file of each package; nothing where it cannot be found."""
    sys.path += payload.get("folders", [])  # type: ignore[arg-type]
    found = {}
    for name in payload["names"]:  # type: ignore[attr-defined]
        try:
            found[name] = importlib.import_module(name).__file__
        except ModuleNotFoundError as error:
            found[name] = "" if error.name == name else repr(error)
    return found


def run_statements(payload: Payload) -> object:
    """Run statements that are meant to spoil the report of how the job ended."""
    exec(str(payload["code"]), {"__name__": "statements"})
    return "done"
