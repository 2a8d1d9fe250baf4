"""Work on codes in worker processes; if a code kills its worker, the result is a reason, not a crash."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TypeVar

from lemur_core.files.workers import map_chunks

_CHUNK_CODES = 48

T = TypeVar("T")


def map_codes(
    work: Callable[[str], T], codes: Iterable[tuple[bytes, str]], jobs: int | None
) -> Iterator[list[tuple[bytes, T | str]]]:
    """Yield `work` of every (digest, code) pair, in order, in chunks; reads ahead only a little.

    Args:
        work: run in other processes, so it must be picklable.
        jobs: the number of processes; None for one per available core.
    Returns: (digest, result) pairs; if a worker dies on a code, the result is a text that says so.
    """
    rest = iter(codes)
    chunks = iter(lambda: list(islice(rest, _CHUNK_CODES)), [])
    return map_chunks(partial(_with_digest, work), chunks, _report_crash, jobs)


def _with_digest(work: Callable[[str], T], item: tuple[bytes, str]) -> tuple[bytes, T | str]:
    return item[0], work(item[1])


def _report_crash(item: tuple[bytes, str]) -> tuple[bytes, str]:
    return item[0], "Python's parser crashed on it"
