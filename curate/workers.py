"""Worker processes: started clean (spawn), with a safe path, deaf to Ctrl-C so that the parent alone decides."""

import contextlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor


@contextlib.contextmanager
def process_pool(jobs: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """A pool of `jobs` processes (default: the cores this process may use); killed at once when the body fails."""
    os.environ["PYTHONSAFEPATH"] = "1"  # a stray train.py or curate.py in the working folder must not be imported
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs or available_cores(), mp_context=context, initializer=_start_worker)
    try:
        yield pool
    except BaseException:
        for process in list(pool._processes.values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # parsing foreign code: an invalid escape in it is not our warning
