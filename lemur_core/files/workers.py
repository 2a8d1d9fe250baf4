"""Worker processes: spawned, with a safe path, ignoring the terminal's signals so that only the parent decides.

A worker that dies costs only the task that it was running: pebble reports it, and starts another worker.
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
from contextvars import ContextVar
from multiprocessing import resource_tracker
from typing import Any, ParamSpec, TypeVar

from pebble import CONSTS, ProcessExpired, ProcessPool

from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.pip import find_version

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")
Started = TypeVar("Started")

#: Signals that a terminal sends to all processes at once: Ctrl-C, and when it is closed.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP)
_ENDING = (*_FROM_TERMINAL, signal.SIGTERM)
_AHEAD = 4  # chunks submitted ahead, for each worker or core of a cluster
#: Exceptions that a future raises if the worker died that ran its task.
DEATHS = (ProcessExpired, BrokenProcessPool)

CONSTS.term_timeout = 0.5  # seconds for a worker to exit before it is killed


@contextlib.contextmanager
def process_pool(jobs: int | None = None) -> Iterator[ProcessPool]:
    """Yield a pool of processes for the block; stop it at once if the block fails.

    Args: jobs: the number of processes; None for one per available core.
    Returns: a context manager of the pool.
    Raises: whatever the block raises, after the processes have ended.
    """
    os.environ["PYTHONSAFEPATH"] = "1"  # a stray train.py or curate.py in the working folder must not be imported
    with _hold_signals():  # it ignores Ctrl-C, but not the end of a terminal
        resource_tracker.ensure_running()  # its start unblocks the signals that `submit` blocks
    context = multiprocessing.get_context("spawn")
    pool = _Pool(jobs or available_cores(), initializer=start_worker, context=context)
    try:
        yield pool
        pool.close()
        pool.join()
    except BaseException:
        pool.stop()
        pool.join()
        raise


class _Pool(ProcessPool):  # type: ignore[misc]  # its types are not read
    """A pool that ends its workers before the locks that they share.

    One that is still starting then, because the others did all the work, would not find them: a traceback.
    """

    def _stop_pool(self) -> None:
        if self._pool_manager_loop is not None:
            self._pool_manager_loop.join()  # starts workers
        self._pool_manager.worker_manager.force_stop_workers()
        super()._stop_pool()


def submit(pool: ProcessPool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Submit a call; workers and pool threads start with the signals blocked that only the parent handles.

    Args: work: a function that can be pickled, as must its arguments and its result.
    Returns: the future of its result.
    """
    with _hold_signals():
        result: Future[T] = pool.schedule(work, args, kwargs)
    return result


def map_chunks(
    work: Callable[[Item], T],
    chunks: Iterable[Sequence[Item]],
    died: Callable[[Item], T] | None,
    jobs: int | None = None,
) -> Iterator[list[T]]:
    """Yield the results of `work` for the items of each chunk, in order; reads ahead only a little.

    Args:
        work: run in other processes, so it must be picklable, as must its items and results.
        chunks: each is one message to a worker: many items if `work` is fast.
        died: returns the result of an item that ended its worker; None if that is to end the run.
        jobs: the number of processes; None for one per available core.
    Returns: one list per chunk.
    Raises: UserError if no worker can be started; ProcessExpired if one dies and there is no `died`.
    """
    if (ray := current_cluster()) is not None:
        yield from _map_on_cluster(ray, work, chunks, died)
        return
    workers = jobs or available_cores()
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(process_pool(workers))

        def take(chunk: Sequence[Item], future: Future[list[T]]) -> list[T]:
            nonlocal pool
            try:
                return future.result()
            except BrokenProcessPool:  # a worker died before it reported its task
                check_workers()
                pool = stack.enter_context(process_pool(workers))
                return _bisect(work, chunk, died)
            except ProcessExpired:
                return _bisect(work, chunk, died)

        yield from _in_order(chunks, lambda chunk: _submit(pool, work, chunk), take, _AHEAD * workers)


def _in_order(
    chunks: Iterable[Sequence[Item]],
    start: Callable[[Sequence[Item]], Started],
    take: Callable[[Sequence[Item], Started], list[T]],
    ahead: int,
) -> Iterator[list[T]]:
    """Yield the results of chunks, of which so many are started ahead."""
    running: deque[tuple[Sequence[Item], Started]] = deque()
    for chunk in chunks:
        running.append((chunk, start(chunk)))
        if len(running) >= ahead:
            yield take(*running.popleft())
    while running:
        yield take(*running.popleft())


def _submit(pool: ProcessPool, work: Callable[[Item], T], chunk: Sequence[Item]) -> Future[list[T]]:
    try:
        return submit(pool, _work_on, work, chunk)
    except RuntimeError as error:  # the pool broke in between: raised where the result is awaited
        failed: Future[list[T]] = Future()
        failed.set_exception(BrokenProcessPool(str(error)))
        return failed


def _work_on(work: Callable[[Item], T], chunk: Sequence[Item]) -> list[T]:
    return [work(item) for item in chunk]


def _bisect(work: Callable[[Item], T], chunk: Sequence[Item], died: Callable[[Item], T] | None) -> list[T]:
    """Return the results of a chunk whose worker died; halve it until the item that kills is isolated."""
    try:
        with process_pool(1) as pool:
            return submit(pool, _work_on, work, chunk).result()
    except DEATHS:
        if died is None:
            raise
        if len(chunk) == 1:
            return [died(chunk[0])]
    middle = len(chunk) // 2
    return [*_bisect(work, chunk[:middle], died), *_bisect(work, chunk[middle:], died)]


def check_workers() -> None:
    """Check that a worker can start at all, before a death is blamed on its item.

    Raises: UserError if no worker can start.
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
def _hold_signals() -> Iterator[None]:
    """Hold back the signals that end a command until the block ends; threads and processes started in it block them.

    A mask does not suffice: where another thread takes the signal (that of a progress bar), Python calls its handler in
    the main thread all the same, and a worker whose start is broken off prints a traceback.
    """
    held: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    is_main = threading.current_thread() is threading.main_thread()  # others run no handlers
    handlers = {number: signal.getsignal(number) for number in _ENDING if is_main}
    changed = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in changed:
        signal.signal(number, lambda number, _: held.append(number))
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if held:
            signal.raise_signal(held[0])


def available_cores() -> int:
    """Count the cores that this process may use.

    Returns: at least 1; fewer than the machine has if an affinity (`taskset`, Slurm) restricts this process.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_worker() -> None:
    """Initialize a worker: ignore the terminal's signals, and exit with the parent."""
    for number in _FROM_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # by which the pool ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.set_threshold(100_000, 10, 10)  # syntax trees are many small objects and hold no cycles
    warnings.simplefilter("ignore")  # an invalid escape in foreign code is not our warning


def _end_with_parent() -> None:
    """Exit when the parent ends: a killed parent cannot notify its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# Work over many items on a Ray cluster, in the place of processes here: the same results, in the same order. Ray runs a
# task again whose worker died. Its nodes need this distribution in the same version, and what it runs in; a sandbox
# confines foreign code there as here. A Ray cluster has no authentication of its own: whoever reaches its ports can run
# code on it, so it should listen inside a network of yours alone.
# Source: https://docs.ray.io/en/latest/ray-core/tasks.html, and its pages on fault tolerance and usage statistics

_RETRIES = 3  # of a task whose worker died
_CURRENT: ContextVar[Any] = ContextVar("cluster", default=None)


def current_cluster() -> Any:
    """Return the module `ray`, connected, in the block of a cluster; None where processes here do the work."""
    return _CURRENT.get()


@contextlib.contextmanager
def on_cluster(address: str | None) -> Iterator[None]:
    """In the block, do work over many items on the Ray cluster at an address; None: in processes here.

    Args: address: as `ray.init` takes it, or `auto`: that of the node that this is.
    Raises: UserError if Ray is not installed, or there is no cluster at the address.
    """
    if address is None:
        yield
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray  # an extra, which takes seconds to import
    except ModuleNotFoundError as error:
        raise UserError("--ray: Ray is not installed; pip install 'lemur-curator[ray]'") from error
    ours = not ray.is_initialized()
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"--ray {address}: no cluster there: {' '.join(str(error).split())[:200]}") from error
    token = _CURRENT.set(ray)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        if ours:
            ray.shutdown()


def _map_on_cluster(
    ray: Any, work: Callable[[Item], T], chunks: Iterable[Sequence[Item]], died: Callable[[Item], T] | None
) -> Iterator[list[T]]:
    task = ray.remote(max_retries=_RETRIES, num_cpus=1)(_work_on_cluster)

    def take(chunk: Sequence[Item], reference: Any) -> list[T]:
        try:
            results: list[T] = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(f"a worker of the Ray cluster: {error.cause}") from error
            raise
        except ray.exceptions.WorkerCrashedError as error:
            if died is None:
                raise RetryableError("a worker of the Ray cluster died again and again; run it again") from error
            if len(chunk) == 1:
                return [died(chunk[0])]
            return [result for (result,) in _map_on_cluster(ray, work, ([item] for item in chunk), died)]
        return results

    ahead = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    yield from _in_order(chunks, lambda chunk: task.remote(find_version("lemur-curator"), work, chunk), take, ahead)


def _work_on_cluster(expected: str, work: Callable[[Item], T], chunk: Sequence[Item]) -> list[T]:
    if (found := find_version("lemur-curator")) != expected:
        raise UserError(f"has lemur-curator {found}, not {expected}; install the same version on all nodes")
    return [work(item) for item in chunk]
