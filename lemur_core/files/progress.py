"""Progress on stderr: a bar on a terminal, elsewhere plain lines."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from lemur_core.files.markdown import make_visible, plural

_LINE_EVERY_SECONDS = 5.0
_NAME_CHARACTERS = 60

#: The variable that hides progress, in worker processes too.
QUIET = "LEMUR_QUIET"

_THREAD = threading.local()
#: The notes that this process printed, which its summaries need not repeat.
NOTED: set[str] = set()


def quiet() -> bool:
    """Return whether progress is hidden."""
    return hasattr(_THREAD, "hidden") or os.environ.get(QUIET, "") not in ("", "0")


@contextlib.contextmanager
def hide_progress(*, unless: bool = False) -> Iterator[None]:
    """Hide progress until the end of the block, also that of processes started in it; with `unless`, change nothing."""
    before = os.environ.get(QUIET)
    os.environ[QUIET] = "1" if not unless else before or ""
    try:
        yield
    finally:
        os.environ.pop(QUIET)
        if before is not None:
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
        NOTED.add(text)


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
        return
    shown = _bar if sys.stderr.isatty() else _lines
    with shown(label, total, unit) as (advance, display), _display(display):
        yield advance


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
def _display(display: Callable[[str], None]) -> Iterator[None]:
    """Use this function to show the longest-running item until the block ends."""
    _DISPLAYS.append(display)
    try:
        yield
    finally:
        _DISPLAYS.remove(display)


#: A function that is told how many items were done, and one that is told the longest-running item.
_Shown = Iterator[tuple[Callable[[int], None], Callable[[str], None]]]


@contextlib.contextmanager
def _bar(label: str, total: int | None, unit: str) -> _Shown:
    # Here, because most processes show no bar: workers, guests, and commands without a terminal.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield (
            lambda count: bar.update(task, advance=count, description=label),
            lambda longest: bar.update(task, description=f"{label} ({longest})"),
        )


@contextlib.contextmanager
def _lines(label: str, total: int | None, unit: str) -> _Shown:
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
            so_far = plural(done, one, unit) if total is None else f"{done:,} of {plural(total, one, unit)}"
            note(f"{label}: {so_far}" + (f"; {longest}" if longest else ""))

    yield advance, lambda longest: advance(0, longest)
    note(f"{label}: {plural(done, one, unit)} in {time.monotonic() - started:.1f} s")
