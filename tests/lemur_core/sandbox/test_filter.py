"""The system call filter, run step by step as the kernel would, for both machines whose numbers are known."""

import errno
import platform
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.sandbox.server.syscalls import build_filter

OWN = 4711
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED = 0x00050000 | errno.EPERM
MISSING = 0x00050000 | errno.ENOSYS
UNSUPPORTED = 0x00050000 | errno.EOPNOTSUPP
ALLOWED, KILLED = 0x7FFF0000, 0x80000000
THREAD = 0x3D0F00  # what pthread_create asks for
PROCESS = 0x1200011  # what fork asks for

NUMBERS = {
    "x86_64": {"read": 0, "mmap": 9, "openat": 257, "futex": 202, "clone": 56, "kill": 62, "tgkill": 234, "prctl": 157}
    | {"prlimit64": 302, "fcntl": 72, "ioctl": 16, "socket": 41, "socketpair": 53, "execve": 59, "ptrace": 101}
    | {"fchmodat": 268, "unshare": 272, "mount": 165, "process_vm_readv": 310, "memfd_create": 319, "bpf": 321}
    | {"tkill": 200, "exit_group": 231, "setsid": 112, "fallocate": 285},
    "aarch64": {"read": 63, "mmap": 222, "openat": 56, "futex": 98, "clone": 220, "kill": 129, "tgkill": 131}
    | {"prctl": 167, "prlimit64": 261, "fcntl": 25, "ioctl": 29, "socket": 198, "socketpair": 199, "execve": 221}
    | {"ptrace": 117, "fchmodat": 53, "unshare": 97, "mount": 40, "process_vm_readv": 270, "memfd_create": 279}
    | {"bpf": 280, "tkill": 130, "exit_group": 94, "setsid": 157, "fallocate": 47},
}


def decide(code: bytes, audit: int, number: int, *arguments: int) -> int:
    """What the program returns for one call."""
    data = struct.pack("=IIQ6Q", number, audit, 0, *arguments, *([0] * (6 - len(arguments))))
    steps = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    at, value = 0, 0
    while True:
        operation, if_true, if_false, operand = steps[at]
        at += 1
        match operation:
            case 0x20:
                value = struct.unpack_from("=I", data, operand)[0]
            case 0x54:
                value &= operand
            case 0x15:
                at += if_true if value == operand else if_false
            case 0x35:
                at += if_true if value >= operand else if_false
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(f"operation {operation:#x} is not in use")


@pytest.fixture(params=sorted(AUDIT))
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    return str(request.param)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        *((name, (), ALLOWED) for name in ("read", "mmap", "openat", "futex", "exit_group")),
        *((name, (), REFUSED) for name in ("socket", "socketpair", "execve", "ptrace", "fchmodat", "unshare", "mount")),
        *((name, (), REFUSED) for name in ("process_vm_readv", "memfd_create", "bpf", "tkill", "setsid")),
        ("fallocate", (3, 0, 0, 2**20), UNSUPPORTED),
        ("clone", (THREAD,), ALLOWED),
        ("clone", (THREAD & ~0x400,), REFUSED),  # a thread with open files of its own
        ("clone", (PROCESS,), REFUSED),
        ("clone", (0x100 | 0x4000 | 17,), REFUSED),  # vfork
        ("clone", (0x10000000 | 17,), REFUSED),  # into a new user namespace
        ("kill", (OWN, 9), ALLOWED),
        ("kill", (OWN + 1, 9), REFUSED),
        ("kill", (2**32 - 1, 9), REFUSED),
        ("kill", (0, 9), REFUSED),
        ("tgkill", (OWN, 5, 9), ALLOWED),
        ("tgkill", (1, 5, 9), REFUSED),
        ("prlimit64", (0, 4), ALLOWED),
        ("prlimit64", (OWN, 4), ALLOWED),
        ("prlimit64", (1, 4), REFUSED),
        ("prctl", (15,), ALLOWED),
        ("prctl", (1,), REFUSED),
        ("prctl", (22,), REFUSED),
        ("fcntl", (3, 4), ALLOWED),
        ("fcntl", (3, 8), REFUSED),
        ("fcntl", (3, 15), REFUSED),
        ("ioctl", (1, 0x5401), ALLOWED),
        ("ioctl", (1, 0x5412), REFUSED),  # TIOCSTI: type into a terminal
    ],
)
def test_decisions(machine: str, name: str, arguments: tuple[int, ...], expected: int) -> None:
    code = build_filter(OWN)
    assert decide(code, AUDIT[machine], NUMBERS[machine][name], *arguments) == expected


@pytest.mark.parametrize("number", [57, 58, 90, 132])
def test_old_calls_of_x86(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """fork, vfork, chmod and utime have newer forms, but are still there."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert decide(build_filter(OWN), AUDIT["x86_64"], number) == REFUSED


@pytest.mark.parametrize(("number", "expected"), [(435, MISSING), (425, MISSING), (439, ALLOWED), (436, ALLOWED)])
def test_recent_calls(machine: str, number: int, expected: int) -> None:
    """clone3 and io_uring are as if not there; faccessat2 and close_range are allowed. The same numbers everywhere."""
    assert decide(build_filter(OWN), AUDIT[machine], number) == expected


@given(number=st.integers(0, 2**32 - 1))
def test_other_architectures_are_killed_and_x32_is_refused(number: int) -> None:
    code = build_filter(OWN)
    audit = AUDIT[platform.machine()]
    assert decide(code, 0x40000003, number) == KILLED  # 32-bit x86, by way of int 0x80
    if number >= 0x40000000:
        assert decide(code, audit, number) == MISSING


def test_unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    with pytest.raises(OSError, match="no system call filter for linux on vax"):
        build_filter(OWN)


def test_length(machine: str) -> None:
    assert len(build_filter(OWN)) // 8 <= 4096  # the kernel's limit
