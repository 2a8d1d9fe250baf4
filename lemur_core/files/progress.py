"""Progress on stderr: a bar on a terminal, plain lines elsewhere. Nothing here is written to an output file."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from lemur_core.files.markdown import make_visible

_LINE_EVERY_SECONDS = 5.0
_NAME_CHARACTERS = 60

#: The variable that hides progress, in worker processes too.
QUIET = "LEMUR_QUIET"

_THREAD = threading.local()


def quiet() -> bool:
    """Return whether progress is hidden."""
    return hasattr(_THREAD, "hidden") or os.environ.get(QUIET, "") not in ("", "0")


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


def hide_in_thread() -> None:
    """Hide the progress of this thread as long as it runs; that of others is not affected."""
    _THREAD.hidden = True


def note(text: str) -> None:
    """Print one plain line to stderr, unless progress is hidden.

    Args: text: a text of any origin; unprintable characters and line breaks are escaped.
    """
    if not quiet():
        print(make_visible(text), file=sys.stderr, flush=True)


#: The displays of the open `progress` blocks, the innermost one last.
_DISPLAYS: list[Callable[[str], None]] = []


def show_longest(name: str, seconds: float) -> None:
    """Show the longest-running item in the innermost open progress.

    Args: name: name of the item, of any origin; unprintable characters are escaped.
    """
    show_item(f"longest: {make_visible(name)[:_NAME_CHARACTERS]}, {seconds:.0f} s")


def show_item(text: str) -> None:
    """Show what is done now in the innermost open progress."""
    if _DISPLAYS:
        _DISPLAYS[-1](text)


@contextlib.contextmanager
def progress(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show the progress of a `with` block on stderr, unless progress is hidden.

    Args:
        label: the text before the numbers: what is done.
        total: the number of items; None if it is unknown.
        unit: the noun of the items.
    Returns: a context manager that yields a function to call with the number of items done since its last call.
    """
    label = make_visible(label)
    if quiet():
        yield lambda _count: None
    elif sys.stderr.isatty():
        with _bar(label, total, unit) as advance:
            yield advance
    else:
        with _lines(label, total, unit) as advance:
            yield advance


@contextlib.contextmanager
def _display(display: Callable[[str], None]) -> Iterator[None]:
    """Use this function to show the longest-running item until the block ends."""
    _DISPLAYS.append(display)
    try:
        yield
    finally:
        _DISPLAYS.remove(display)


@contextlib.contextmanager
def show_steps(label: str) -> Iterator[None]:
    """Print the items that `show_item` names in a `with` block, at most one every five seconds."""
    last = time.monotonic()

    def display(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_EVERY_SECONDS:
            last = time.monotonic()
            note(f"{label}: {text}")

    with _display(display):
        yield


@contextlib.contextmanager
def _bar(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    # Here, because most processes show no bar: workers, guests, and commands without a terminal.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)

        def advance(count: int) -> None:
            bar.update(task, advance=count, description=label)

        with _display(lambda longest: bar.update(task, description=f"{label} ({longest})")):
            yield advance


@contextlib.contextmanager
def _lines(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    started = last = moved = time.monotonic()
    done = 0
    one = unit.removesuffix("es") if unit.endswith("sses") else unit.removesuffix("s")

    def advance(count: int, longest: str = "") -> None:
        nonlocal done, last, moved
        done += count
        now = time.monotonic()
        moved = now if count else moved
        # The longer nothing happens, the less often a line is printed.
        if now - last >= max(_LINE_EVERY_SECONDS, (now - moved) / 4):
            last = now
            of = f" of {total:,}" if total is not None else ""
            noun = one if (done if total is None else total) == 1 else unit
            note(f"{label}: {done:,}{of} {noun}" + (f"; {longest}" if longest else ""))

    with _display(lambda longest: advance(0, longest)):
        yield advance
    note(f"{label}: {done:,} {one if done == 1 else unit} in {time.monotonic() - started:.1f} s")
