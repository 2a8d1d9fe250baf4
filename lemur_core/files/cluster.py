"""Work over many items on a Ray cluster, in the place of processes here: the same results, in the same order.

Ray runs a task again whose worker died. Its nodes need this distribution in the same version, and what it runs in; a
sandbox confines the foreign code there as here. A Ray cluster has no authentication of its own: whoever reaches its
port can run code on it, so let it listen inside a network of yours alone.

Source: https://docs.ray.io/en/latest/ray-core/tasks.html, and the sections on fault tolerance and usage statistics
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from lemur_core.files.errors import RetryableError, UserError

T = TypeVar("T")
Item = TypeVar("Item")

_AHEAD = 4  # chunks submitted ahead, for each core of the cluster
_RETRIES = 3  # of a task whose worker died
_CURRENT: ContextVar["Cluster | None"] = ContextVar("cluster", default=None)


def current_cluster() -> "Cluster | None":
    """Return the cluster of the block that runs; None where processes here do the work."""
    return _CURRENT.get()


@contextmanager
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
    token = _CURRENT.set(Cluster(ray))
    try:
        yield
    finally:
        _CURRENT.reset(token)
        if ours:
            ray.shutdown()


class Cluster:
    """A Ray cluster to which this process is connected. Args: ray: the module."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def map_chunks(
        self, work: Callable[[Item], T], chunks: Iterable[Sequence[Item]], died: Callable[[Item], T] | None
    ) -> Iterator[list[T]]:
        """Yield the results of `work` for the items of each chunk, as `lemur_core.files.workers.map_chunks` does."""
        task = self._ray.remote(max_retries=_RETRIES, num_cpus=1)(_work_on)
        running: deque[tuple[Sequence[Item], Any]] = deque()

        def take_next() -> list[T]:
            chunk, reference = running.popleft()
            try:
                results: list[T] = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, UserError):
                    raise UserError(f"a worker of the Ray cluster: {error.cause}") from error
                raise
            except self._ray.exceptions.WorkerCrashedError as error:
                if died is None:
                    raise RetryableError("a worker of the Ray cluster died again and again; run it again") from error
                if len(chunk) == 1:
                    return [died(chunk[0])]
                return [result for (result,) in self.map_chunks(work, ([item] for item in chunk), died)]
            return results

        for chunk in chunks:
            running.append((chunk, task.remote(_find_version(), work, chunk)))
            if len(running) >= _AHEAD * max(1, int(self._ray.cluster_resources().get("CPU", 1))):
                yield take_next()
        while running:
            yield take_next()


def _work_on(expected: str, work: Callable[[Item], T], chunk: Sequence[Item]) -> list[T]:
    if (found := _find_version()) != expected:
        raise UserError(f"has lemur-curator {found}, not {expected}; install the same version on all nodes")
    return [work(item) for item in chunk]


def _find_version() -> str:
    try:
        return version("lemur-curator")
    except PackageNotFoundError:
        return "none"
