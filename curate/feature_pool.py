"""Features worked out by worker processes; a code that kills its worker becomes a reason, not a crash."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack

from curate.features import Features, code_features
from curate.tokens import Detail
from curate.workers import available_cores, process_pool, submit

_CHUNK_CODES = 48
_AHEAD = 4

Chunk = list[tuple[bytes, str]]
Result = list[tuple[bytes, Features | str]]


def compute_features(codes: Iterable[tuple[bytes, str]], detail: Detail, jobs: int | None) -> Iterator[Result]:
    """Features of (digest, code) pairs, in order, some at a time; reads ahead only a little."""
    workers = jobs or available_cores()
    with ExitStack() as stack:
        pool = stack.enter_context(process_pool(workers))
        running: deque[tuple[Chunk, Future[Result]]] = deque()
        chunks = _chunks(codes)
        while True:
            while len(running) < workers * _AHEAD and (chunk := next(chunks, None)):
                running.append((chunk, _submit(pool, chunk, detail)))
            if not running:
                return
            chunk, future = running.popleft()
            try:
                yield future.result()
            except BrokenProcessPool:
                yield _one_by_one(chunk, detail)
                pool = stack.enter_context(process_pool(workers))
                running = deque((later, _submit(pool, later, detail)) for later, _ in running)


def _submit(pool: ProcessPoolExecutor, chunk: Chunk, detail: Detail) -> Future[Result]:
    try:
        return submit(pool, _features_of, chunk, detail)
    except BrokenProcessPool as error:  # a worker died meanwhile: told where the result is awaited
        failed: Future[Result] = Future()
        failed.set_exception(error)
        return failed


def _features_of(chunk: Chunk, detail: Detail) -> Result:
    return [(digest, code_features(code, detail)) for digest, code in chunk]


def _one_by_one(chunk: Chunk, detail: Detail) -> Result:
    result: Result = []
    for item in chunk:
        try:
            with process_pool(1) as pool:
                result += submit(pool, _features_of, [item], detail).result()
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
