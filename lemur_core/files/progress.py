"""Progress on stderr: a bar on a terminal, plain lines elsewhere. Nothing here is written to an output file."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

_LINE_EVERY_SECONDS = 5.0

#: The variable that hides progress, in worker processes too.
QUIET = "LEMUR_QUIET"


def quiet() -> bool:
    """Return whether progress is hidden."""
    return os.environ.get(QUIET, "") not in ("", "0")


@contextlib.contextmanager
def hide_progress(*, unless: bool = False) -> Iterator[None]:
    """Hide progress until the end of the block, then restore the setting.

    Args: unless: change nothing.
    Returns: a context manager; processes that are started in the block inherit the setting.
    """
    if unless:
        yield
        return
    before = os.environ.get(QUIET)
    os.environ[QUIET] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[QUIET]
        else:
            os.environ[QUIET] = before


def note(text: str) -> None:
    """Print one plain line to stderr, unless progress is hidden.

    Args: text: without a line end.
    """
    if not quiet():
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show the progress of a block on stderr, unless progress is hidden.

    Args:
        label: what is done, before the numbers.
        total: the number of items; None if it is unknown.
        unit: the noun of the items.
    Returns: a context manager of a function to call with the number of items done since its last call.
    """
    if quiet():
        yield lambda _count: None
    elif sys.stderr.isatty():
        with _bar(label, total, unit) as advance:
            yield advance
    else:
        with _lines(label, total, unit) as advance:
            yield advance


@contextlib.contextmanager
def _bar(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


@contextlib.contextmanager
def _lines(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    started = last = time.monotonic()
    done = 0

    def advance(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if now - last >= _LINE_EVERY_SECONDS:
            last = now
            of = f" of {total:,}" if total is not None else ""
            note(f"{label}: {done:,}{of} {unit}")

    yield advance
    note(f"{label}: {done:,} {unit} in {time.monotonic() - started:.1f} s")
