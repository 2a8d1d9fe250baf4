"""Work on codes done by worker processes; a code that kills its worker becomes a reason, not a crash."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from typing import TypeVar

from lemur_core.files.workers import available_cores, check_workers, process_pool, submit

_CHUNK_CODES = 48
_AHEAD = 4

T = TypeVar("T")
Work = Callable[[str], T]
Chunk = list[tuple[bytes, str]]
Result = list[tuple[bytes, T | str]]


def map_codes(work: Work[T], codes: Iterable[tuple[bytes, str]], jobs: int | None) -> Iterator[Result[T]]:
    """`work` on every (digest, code) pair, in order, some at a time; reads ahead only a little.

    A code on which a worker dies gets a text that says so in place of its result.
    """
    workers = jobs or available_cores()
    with ExitStack() as stack:
        pool = stack.enter_context(process_pool(workers))
        running: deque[tuple[Chunk, Future[Result[T]]]] = deque()
        chunks = _chunks(codes)
        while True:
            while len(running) < workers * _AHEAD and (chunk := next(chunks, None)):
                running.append((chunk, _submit(pool, work, chunk)))
            if not running:
                return
            chunk, future = running.popleft()
            try:
                yield future.result()
            except BrokenProcessPool:
                check_workers()
                yield _one_by_one(work, chunk)
                pool = stack.enter_context(process_pool(workers))
                running = deque((later, _submit(pool, work, later)) for later, _ in running)


def _submit(pool: ProcessPoolExecutor, work: Work[T], chunk: Chunk) -> Future[Result[T]]:
    try:
        return submit(pool, _work_on, work, chunk)
    except BrokenProcessPool as error:  # a worker died meanwhile: told where the result is awaited
        failed: Future[Result[T]] = Future()
        failed.set_exception(error)
        return failed


def _work_on(work: Work[T], chunk: Chunk) -> Result[T]:
    return [(digest, work(code)) for digest, code in chunk]


def _one_by_one(work: Work[T], chunk: Chunk) -> Result[T]:
    result: Result[T] = []
    for item in chunk:
        try:
            with process_pool(1) as pool:
                result += submit(pool, _work_on, work, [item]).result()
        except BrokenProcessPool:
            result.append((item[0], "Python's parser crashed on it"))
    return result


def _chunks(codes: Iterable[tuple[bytes, str]]) -> Iterator[Chunk]:
    chunk: Chunk = []
    for item in codes:
        chunk.append(item)
        if len(chunk) >= _CHUNK_CODES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
