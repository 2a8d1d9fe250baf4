"""The system calls that a job may make, as a seccomp filter. All others are refused.

It is an allowlist, so that a call that a later kernel adds (io_uring was one) is refused before we know of it. No
sockets of any family, no new processes, no exec, no changes of permissions, owners or times (Landlock does not cover
those), no signals, limits or memory of other processes.

Source: https://docs.kernel.org/userspace-api/seccomp_filter.html; numbers from the kernel's unistd headers.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from functools import cache

# name/x86_64/aarch64, "-" where a machine has no such call
_ALLOWED = """
    # memory
    mmap/9/222 munmap/11/215 mprotect/10/226 mremap/25/216 madvise/28/233 brk/12/214 msync/26/227 mincore/27/232
    mlock/149/228 munlock/150/229 membarrier/324/283 get_mempolicy/239/236
    # open files
    read/0/63 write/1/64 readv/19/65 writev/20/66 pread64/17/67 pwrite64/18/68 preadv/295/69 pwritev/296/70
    preadv2/327/286 pwritev2/328/287 close/3/57 close_range/436/436 lseek/8/62 fstat/5/80 dup/32/23 dup2/33/-
    dup3/292/24 flock/73/32 ftruncate/77/46 fsync/74/82 fdatasync/75/83 sendfile/40/71
    copy_file_range/326/285 fadvise64/221/223 pipe/22/- pipe2/293/59 eventfd/284/- eventfd2/290/19 epoll_create/213/-
    epoll_create1/291/20 epoll_ctl/233/21 epoll_wait/232/- epoll_pwait/281/22 epoll_pwait2/441/441 poll/7/-
    ppoll/271/73 select/23/- pselect6/270/72 timerfd_create/283/85 timerfd_settime/286/86 timerfd_gettime/287/87
    # paths: the file system rules decide
    open/2/- openat/257/56 creat/85/- stat/4/- lstat/6/- newfstatat/262/79 statx/332/291 access/21/- faccessat/269/48
    faccessat2/439/439 readlink/89/- readlinkat/267/78 getcwd/79/17 chdir/80/49 fchdir/81/50 truncate/76/45
    rename/82/- renameat/264/38 renameat2/316/276 mkdir/83/- mkdirat/258/34 rmdir/84/- unlink/87/- unlinkat/263/35
    link/86/- linkat/265/37 symlink/88/- symlinkat/266/36 getdents/78/- getdents64/217/61 statfs/137/43 fstatfs/138/44
    umask/95/166
    # this process
    getpid/39/172 getppid/110/173 gettid/186/178 getuid/102/174 geteuid/107/175 getgid/104/176 getegid/108/177
    getresuid/118/148 getresgid/120/150 getgroups/115/158 getpgid/121/155 getpgrp/111/- getsid/124/156 exit/60/93
    exit_group/231/94 set_tid_address/218/96 set_robust_list/273/99 rseq/334/293 futex/202/98 futex_waitv/449/449
    sched_yield/24/124 sched_getaffinity/204/123 sched_getparam/143/121 sched_getscheduler/145/120
    sched_get_priority_max/146/125 sched_get_priority_min/147/126 getpriority/140/141 getrlimit/97/163
    setrlimit/160/164 getrusage/98/165 times/100/153 uname/63/160 sysinfo/99/179 arch_prctl/158/- capget/125/90
    wait4/61/260 waitid/247/95 getcpu/309/168 restart_syscall/219/128
    # signals to this process
    rt_sigaction/13/134 rt_sigprocmask/14/135 rt_sigreturn/15/139 rt_sigpending/127/136 rt_sigsuspend/130/133
    rt_sigtimedwait/128/137 sigaltstack/131/132 pause/34/- alarm/37/- getitimer/36/102 setitimer/38/103
    timer_create/222/107 timer_settime/223/110 timer_gettime/224/108 timer_getoverrun/225/109 timer_delete/226/111
    # clocks and chance
    clock_gettime/228/113 clock_getres/229/114 clock_nanosleep/230/115 nanosleep/35/101 gettimeofday/96/169 time/201/-
    getrandom/318/278
"""

# name: (x86_64, aarch64), index of the checked argument, its mask (or None), allowed values; "self" is our process ID
# CLONE_THREAD, CLONE_SIGHAND, CLONE_VM: a thread, never a process. CLONE_FILES: with the open files of the others, so
# that there is one table of them to limit and to count.
_THREAD_FLAGS = 0x10000 | 0x800 | 0x100 | 0x400
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 36, 37, 38)  # copies, flags, locks; not F_SETOWN, F_SETSIG: signals to others
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_PRCTL = (3, 15, 16, 23, 0x53564D41)  # PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ, PR_SET_VMA
_FILTERED: dict[str, tuple[tuple[int, int], int, int | None, tuple[int | str, ...]]] = {
    "clone": ((56, 220), 0, _THREAD_FLAGS, (_THREAD_FLAGS,)),
    "kill": ((62, 129), 0, None, ("self",)),
    "tgkill": ((234, 131), 0, None, ("self",)),
    "prlimit64": ((302, 261), 0, None, (0, "self")),
    "prctl": ((157, 167), 0, None, _PRCTL),
    "fcntl": ((72, 25), 1, None, _FCNTL),
    "ioctl": ((16, 29), 1, None, _IOCTL),
}

# Its space would be taken at once, before any check. Programs then write, as on file systems without it.
_UNSUPPORTED = "fallocate/285/47"

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
#: Calls from this number on are recent; C libraries that prefer them fall back to an older call only on ENOSYS.
_FIRST_RECENT = 403

_LOAD, _AND, _RETURN, _IF_EQUAL, _IF_AT_LEAST = 0x20, 0x54, 0x06, 0x15, 0x35
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


_LIBRARY = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def build_filter(own_id: int) -> bytes:
    """Return the filter program for this machine, for the process with this ID.

    Raises: OSError on a machine whose system call numbers are unknown.
    """
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no system call filter for {sys.platform} on {platform.machine()}")
    column, audit = _MACHINES[platform.machine()]
    # The architecture first: on another one (i386 on x86-64), a number means another call.
    code = [_op(_LOAD, 4), _op(_IF_EQUAL, audit, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, 0)]
    refuse = _op(_RETURN, _ERRNO | errno.EPERM)
    for numbers, argument, mask, values in _FILTERED.values():
        block = [_op(_LOAD, 16 + 8 * argument)]  # the low half: these arguments are 32 bits wide
        if mask is not None:
            block.append(_op(_AND, mask))
        for value in values:
            block += [_op(_IF_EQUAL, own_id if isinstance(value, str) else value, 0, 1), _op(_RETURN, _ALLOW)]
        block.append(refuse)
        code += [_op(_IF_EQUAL, numbers[column], 0, len(block)), *block]
    code += [_build_list(column), _op(_IF_AT_LEAST, _FIRST_RECENT, 0, 1), _op(_RETURN, _ERRNO | errno.ENOSYS), refuse]
    return b"".join(code)


@cache
def _build_list(column: int) -> bytes:
    """Return the part of the filter that is the same in every process."""
    code = []
    for calls, action in ((_UNSUPPORTED, _ERRNO | errno.EOPNOTSUPP), (_ALLOWED, _ALLOW)):
        for number in _list_numbers(calls, column):
            code += [_op(_IF_EQUAL, number, 0, 1), _op(_RETURN, action)]
    return b"".join(code)


def install_filter() -> None:
    """Install the filter on the calling thread, which must be the only one; it cannot be removed again.

    Raises: OSError if the kernel refuses it.
    """
    code = build_filter(os.getpid())
    program = _Program(len(code) // 8, code)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))


def prctl(option: int, argument: int, more: object = 0) -> None:
    """Call prctl, which changes attributes of this process. Raises: OSError if it fails."""
    call_kernel("prctl", option, argument, more, 0, 0)


def call_kernel(name: str, *arguments: object) -> None:
    """Call a function of the C library. Raises: OSError if it does not return 0."""
    if getattr(_LIBRARY, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name} {arguments[0]}: {os.strerror(number)}")


def _list_numbers(calls: str, column: int) -> list[int]:
    """Return the numbers of these calls on this machine."""
    lines = [line for line in calls.splitlines() if not line.strip().startswith("#")]
    numbers = [entry.split("/")[1 + column] for line in lines for entry in line.split()]
    return [int(number) for number in numbers if number != "-"]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
