"""Confinement of a job before foreign code runs, and the self-test that checks it.

Limits, capabilities, files, system calls. Nothing here can be undone. It runs in the forked child. The order matters:
each step still needs what the next one takes away. The attempts of the self-test are harmless even if the sandbox is
broken.
"""

import contextlib
import ctypes
import importlib.util
import os
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .jobs import Limits
from .syscalls import build_filter, call_kernel, install_filter, prctl

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_SIGKILL = 9
_CAPABILITY_VERSION_3 = 0x20080522
#: The kernel counts those of all processes of the user, and refuses a job's if there are more than this.
_PENDING_SIGNALS = 64
_FIRST_TO_GO = "1000"  # the highest oom_score_adj; raising one's own takes no privileges

#: Readable besides the interpreter: machine facts that PyTorch reads. No other process's folder in /proc, and in its
#: own no connections, mounts, and names of control groups.
MACHINE_FILES = (
    *("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"),
    *(f"/proc/self/{name}" for name in ("auxv", "comm", "fd", "limits", "maps", "oom_score_adj", "smaps_rollup")),
    *(f"/proc/self/{name}" for name in ("stat", "statm", "status")),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm/overcommit_memory"),
    *("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/kernel/mm/transparent_hugepage"),
)


def load_sandlock(folder: str) -> None:
    """Import sandlock from the caller's installation, into an interpreter that may not have it.

    Raises: OSError or ImportError if its library cannot be loaded here.
    """
    spec = importlib.util.spec_from_file_location(
        "sandlock", Path(folder) / "__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sandlock"] = module
    spec.loader.exec_module(module)


def limit_resources(limits: Limits, base_bytes: int) -> None:
    """Set the resource limits of the calling process, hard ones too, so that it cannot raise them again."""
    cpu = max(1, int(limits.cpu_seconds + 0.999))
    wanted = {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_CPU: (cpu, cpu + 1),  # SIGXCPU can be ignored, the SIGKILL one second later cannot
        resource.RLIMIT_FSIZE: (limits.file_bytes,) * 2,
        resource.RLIMIT_NOFILE: (limits.open_files,) * 2,
    }
    if sys.platform == "linux":
        wanted[resource.RLIMIT_SIGPENDING] = (_PENDING_SIGNALS,) * 2  # timers count as well
    # On top of what the server has mapped, which the job inherits.
    if base_bytes:
        wanted[resource.RLIMIT_AS] = (base_bytes + limits.memory_bytes,) * 2
    for which, (soft, hard) in wanted.items():
        # Only a privileged process can raise a hard limit.
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(which, (soft, hard))


def confine(backend: str, readable: Sequence[str], scratch: str) -> None:
    """Confine the calling process: drop capabilities, then restrict files (Landlock), then system calls (seccomp).

    Under bubblewrap the file rules are the mounts of the server's namespace, so only the other two are added.

    Raises: OSError or sandlock's SandlockError if one of them is unavailable.
    """
    drop_capabilities()
    if backend == "sandlock":
        _restrict_files(readable, scratch)
    install_filter()


def prepare_server() -> None:
    """Deny other processes of the user the server's memory, and make it the parent of what jobs leave behind."""
    prctl(_PR_SET_DUMPABLE, 0)  # nor core dumps; children inherit it
    prctl(_PR_SET_CHILD_SUBREAPER, 1)  # to be able to find these processes, and end them
    with contextlib.suppress(OSError):  # another machine, which the self-test reports
        build_filter(os.getpid())  # most of it is then ready for each job


def prepare_job() -> None:
    """Let a job end with its server, before anything else, and show the server its open files."""
    prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    with contextlib.suppress(OSError):  # no /proc
        # The first that the kernel kills when the machine runs out of memory; irreversible.
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")
    prctl(_PR_SET_DUMPABLE, 1)  # other jobs are kept from them by files and system calls


def drop_capabilities() -> None:
    """Drop every capability for good; this matters only if the caller is root.

    Raises: OSError if the kernel does not drop them.
    """
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(64):
        with contextlib.suppress(OSError):  # refused to ordinary users, who have none
            prctl(_PR_CAPBSET_DROP, capability)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    call_kernel("capset", header, nothing)


def _restrict_files(readable: Sequence[str], scratch: str) -> None:
    sandlock = importlib.import_module("sandlock")
    sandlock.confine(
        sandlock.Sandbox(
            fs_readable=[path for path in readable if os.path.exists(path)],  # noqa: PTH110 (72 paths a job)
            fs_writable=[scratch, "/dev/null"],
            # An older kernel has fewer kinds of rules. The self-test decides whether what is left is enough: signals
            # and sockets are refused by the system call filter in any case.
            allow_degraded=list(sandlock.Protection),
        )
    )


def find_breaches(payload: dict[str, object]) -> list[str]:
    """Return the forbidden actions that succeed in a confined job; empty if the sandbox works.

    `canary` is a file of the caller outside of the scratch folder; `home` the user's home folder.
    """
    canary, home = Path(str(payload["canary"])), Path(str(payload["home"]))
    attempts: dict[str, Callable[[], object]] = {
        "read a file outside": canary.read_bytes,
        "list the home folder": lambda: list(home.iterdir()),
        "write to a file outside": lambda: canary.open("ab").close(),
        "truncate a file outside": lambda: os.truncate(canary, 1),
        "open a file outside for truncation": lambda: os.close(os.open(canary, os.O_RDONLY | os.O_TRUNC)),
        "change the mode of a file outside": lambda: canary.chmod(0o600),
        "create a file outside": lambda: canary.with_name("created").touch(),
        "rename a file outside": lambda: canary.rename(canary.with_name("moved")),
        "open an internet socket": lambda: socket.socket(socket.AF_INET).close(),
        "open a local socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "start a process": _fork,
        "signal the server": lambda: os.kill(os.getppid(), 0),
        "read the server's environment": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "trace the server": _trace_parent,
        "lift a limit": lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)),
    }
    breaches = [name for name, attempt in attempts.items() if _succeeds(attempt)]
    own = Path("self-test")
    own.write_bytes(b"x")  # allowed actions must work, or the test proves nothing
    own.unlink()
    return breaches


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, ValueError):
        return False
    return True


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _trace_parent() -> None:
    """Try to attach to the parent and detach at once: PTRACE_SEIZE does not stop the process."""
    assert sys.platform == "linux"
    # PTRACE_SEIZE and PTRACE_DETACH.
    for request in (0x4206, 17):
        call_kernel("ptrace", request, os.getppid(), 0, 0)
