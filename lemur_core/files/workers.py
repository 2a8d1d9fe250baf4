"""Worker processes: started clean (spawn), with a safe path, deaf to the terminal so that the parent alone decides."""

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

from lemur_core.files.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")

#: What a terminal sends to all processes at once: Ctrl-C, and that it was closed.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def process_pool(jobs: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """A pool of `jobs` processes (default: the cores this process may use); killed at once when the body fails."""
    os.environ["PYTHONSAFEPATH"] = "1"  # a stray train.py or curate.py in the working folder must not be imported
    context = multiprocessing.get_context("spawn")
    with _deaf():  # it starts multiprocessing's resource tracker
        pool = ProcessPoolExecutor(jobs or available_cores(), mp_context=context, initializer=_start_worker)
    try:
        yield pool
    except BaseException:
        _kill(pool)
        raise
    pool.shutdown()


def _kill(pool: ProcessPoolExecutor) -> None:
    """End the workers at once, whatever they do, and the pool's thread.

    One may die with half of a result sent. The pool's thread would wait for the rest for ever, so the results' pipe
    loses the end that is held open here. The calls' pipe is for that thread to close: two that close one descriptor may
    close another's. That thread parses code to tell of the death, and before Python 3.11.8 two threads that parse at a
    time break each other's syntax trees (https://github.com/python/cpython/issues/106905), so its end is waited for.
    """
    for process in list(pool._processes.values()):
        process.kill()
    pool._result_queue._writer.close()  # type: ignore[attr-defined]
    if sys.version_info < (3, 11, 5):  # that thread leaves it open, and waits for what nobody reads
        pool._call_queue._reader.close()  # type: ignore[attr-defined]
    pool.shutdown(cancel_futures=True)


def check_workers() -> None:
    """Make sure that a worker can start at all, before a death is blamed on what it worked on.

    Raises: UserError if none can.
    """
    try:
        with process_pool(1) as pool:
            submit(pool, int).result()
    except BrokenProcessPool as error:
        raise UserError(
            "no worker process can be started; in a script of your own, put what runs under"
            ' `if __name__ == "__main__":`, since workers import it again'
        ) from error


def submit(pool: ProcessPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """`pool.submit`; a worker that it may start is deaf to the terminal from its first moment."""
    with _deaf():
        return pool.submit(work, *args, **kwargs)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """What the terminal sends is held back for the moment; a process that is started inherits the blocked signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FROM_TERMINAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker() -> None:
    for number in _FROM_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.set_threshold(100_000, 10, 10)  # syntax trees are many small objects and hold no cycles
    warnings.simplefilter("ignore")  # parsing foreign code: an invalid escape in it is not our warning


def _end_with_parent() -> None:
    """A parent that is killed tells its workers nothing, and they hold each other's pipes open."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
