"""Worker processes: started clean (spawn), with a safe path, deaf to the terminal so that the parent alone decides.

A worker that dies costs the one task that it had: pebble tells of it, and starts another worker.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

from pebble import CONSTS, ProcessExpired, ProcessPool

from lemur_core.files.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")

#: What a terminal sends to all processes at once: Ctrl-C, and that it was closed.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP)
_AHEAD = 4  # chunks handed out, for each worker
_DEATHS = (ProcessExpired, BrokenProcessPool)

CONSTS.term_timeout = 0.5  # seconds that a worker has to end by itself before it is killed


@contextlib.contextmanager
def process_pool(jobs: int | None = None) -> Iterator[ProcessPool]:
    """A pool of `jobs` processes (default: the cores this process may use); ended at once when the body fails."""
    os.environ["PYTHONSAFEPATH"] = "1"  # a stray train.py or curate.py in the working folder must not be imported
    context = multiprocessing.get_context("spawn")
    pool = ProcessPool(jobs or available_cores(), initializer=start_worker, context=context)
    try:
        yield pool
        pool.close()
        pool.join()
    except BaseException:
        pool.stop()
        pool.join()
        raise


def submit(pool: ProcessPool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """The result to come; workers and the pool's threads, which start with the first task, are deaf from the outset."""
    with _deaf():
        result: Future[T] = pool.schedule(work, args, kwargs)
    return result


def map_items(work: Callable[[Item], T], items: Iterable[Item], jobs: int | None = None) -> Iterator[T]:
    """What `work` gives for each item, in order; reads ahead only a little.

    Raises: UserError if no worker can be started; ProcessExpired if one dies.
    """
    for (result,) in map_chunks(work, ([item] for item in items), None, jobs):
        yield result


def map_chunks(
    work: Callable[[Item], T],
    chunks: Iterable[Sequence[Item]],
    died: Callable[[Item], T] | None,
    jobs: int | None = None,
) -> Iterator[list[T]]:
    """What `work` gives for the items of each chunk, in order; reads ahead only a little.

    An item on which a worker dies gets what `died` gives for it in place of its result.

    Raises: UserError if no worker can be started; ProcessExpired if one dies and there is no `died`.
    """
    workers = jobs or available_cores()
    running: deque[tuple[Sequence[Item], Future[list[T]]]] = deque()
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(process_pool(workers))

        def finished() -> list[T]:
            nonlocal pool
            chunk, future = running.popleft()
            try:
                return future.result()
            except BrokenProcessPool:  # a worker died before it had told what it was at
                check_workers()
                pool = stack.enter_context(process_pool(workers))
                return _divide(work, chunk, died)
            except ProcessExpired:
                return _divide(work, chunk, died)

        for chunk in chunks:
            running.append((chunk, _submit(pool, work, chunk)))
            if len(running) >= _AHEAD * workers:
                yield finished()
        while running:
            yield finished()


def _submit(pool: ProcessPool, work: Callable[[Item], T], chunk: Sequence[Item]) -> Future[list[T]]:
    try:
        return submit(pool, _work_on, work, chunk)
    except RuntimeError as error:  # the pool broke meanwhile: told where the result is awaited
        failed: Future[list[T]] = Future()
        failed.set_exception(BrokenProcessPool(str(error)))
        return failed


def _work_on(work: Callable[[Item], T], chunk: Sequence[Item]) -> list[T]:
    return [work(item) for item in chunk]


def _divide(work: Callable[[Item], T], chunk: Sequence[Item], died: Callable[[Item], T] | None) -> list[T]:
    """The results of a chunk whose worker died; it is halved until the item that kills is alone."""
    try:
        with process_pool(1) as pool:
            return submit(pool, _work_on, work, chunk).result()
    except _DEATHS:
        if died is None:
            raise
        if len(chunk) == 1:
            return [died(chunk[0])]
    middle = len(chunk) // 2
    return [*_divide(work, chunk[:middle], died), *_divide(work, chunk[middle:], died)]


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


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """What the terminal sends is held back for the moment; what is started inherits the blocked signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FROM_TERMINAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_worker() -> None:
    """What each worker does first: it is deaf to the terminal, and ends with its parent."""
    for number in _FROM_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.set_threshold(100_000, 10, 10)  # syntax trees are many small objects and hold no cycles
    warnings.simplefilter("ignore")  # parsing foreign code: an invalid escape in it is not our warning


def _end_with_parent() -> None:
    """A parent that is killed tells its workers nothing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
