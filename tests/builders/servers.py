"""Servers of sandboxes, pools of workers and names of the runtime, kept for the next test: they take seconds of imports.

A job is forked from its server, which runs nothing of it, so a server that has done its work is as a new one. All of
them may read the tests' cache; a sandbox that may read another folder of a test has a server of its own.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from pebble import ProcessPool

from extract.resolve import index
from extract.resolve.runtime_names import RuntimeNames
from lemur_core.files import workers
from lemur_core.sandbox import Sandbox, client
from lemur_core.sandbox.server.jobs import OWN_PACKAGES

#: A pool of the caller's own, for tests that end its workers.
PLAIN_POOL, PLAIN_SUBMIT = workers.process_pool, workers.submit
_MOST = 3  # idle servers of a process, some 400 MB each
_Key = tuple[object, ...]


@dataclass
class _Started:
    key: _Key
    box: Sandbox


@contextmanager
def keep_servers(cache: Path) -> Iterator[None]:
    """Have sandboxes of this process use idle servers until the block ends.

    Args: cache: the cache folder of all tests, with the links to the runtime; jobs may read it.
    """
    enter, close = Sandbox.__enter__, Sandbox.close
    intact = (client.BACKENDS, client.find_package, client.start_all, tempfile.gettempdir())
    idle: list[_Started] = []
    lent: dict[int, _Started] = {}

    def list_outside(box: Sandbox) -> list[Path]:
        paths = (path.resolve() for path in box.readable)
        return [path for path in paths if not path.is_relative_to(cache)]

    def key_of(box: Sandbox) -> _Key | None:
        """Return what servers are equal by; None for a sandbox that needs its own."""
        packages = {entry.partition(".")[0] for entry in box.entries}
        now = (client.BACKENDS, client.find_package, client.start_all, tempfile.gettempdir())
        if box.sys_path or not box.preload or not packages <= set(OWN_PACKAGES) or now != intact:
            return None
        if not all(path.exists() for path in box.readable):
            return None
        outside = sorted(str(path) for path in list_outside(box))
        if any(path.startswith(tempfile.gettempdir()) for path in outside):
            return None  # of this sandbox alone
        environment = sorted(box.environment.items())
        names: list[Any] = [box.preload, box.runtime, outside, environment]
        return (*map(tuple, names), max(2, box.workers), box.unsafe, Path.home(), os.environ.get("LD_LIBRARY_PATH"))

    def start(box: Sandbox, key: _Key) -> _Started:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LEMUR_CURATOR_CACHE", str(cache))
            return _Started(
                key, enter(replace(box, entries=(), workers=max(2, box.workers), readable=[cache, *list_outside(box)]))
            )

    def borrow(box: Sandbox) -> Sandbox:
        key = None if box._folder is not None else key_of(box)
        if key is None:
            return enter(box)
        started = next((each for each in idle if each.key == key), None)
        if started is not None:
            idle.remove(started)
        else:
            while len(idle) >= _MOST:
                close(idle.pop(0).box)
            started = start(box, key)
        lent[id(box)] = started
        box._folder, box._links = started.box._folder, started.box._links
        box.backend, box._slots = started.box.backend, started.box._slots
        return box

    def give_back(box: Sandbox) -> None:
        started = lent.pop(id(box), None)
        if started is None:
            close(box)
            return
        box._links, box._folder = [], None
        for link in started.box._links:
            if link.held:  # of a run that was not gone through
                link.stop()
        idle.append(started)

    Sandbox.__enter__, Sandbox.close = borrow, give_back  # type: ignore[method-assign]
    try:
        yield
    finally:
        Sandbox.__enter__, Sandbox.close = enter, close  # type: ignore[method-assign]
        for started in [*idle, *lent.values()]:
            close(started.box)


def make_once(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return what a file holds; the first of all processes of the tests that asks makes it."""
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            path.write_bytes(make())
    return path.read_bytes()


@contextmanager
def keep_names(cache: Path) -> Iterator[None]:
    """Have the names of the runtime listed once, by a process that imports all of torch, for all tests of this run."""
    plain = RuntimeNames._list

    def list_once(names: RuntimeNames, dotted: str) -> tuple[list[str], list[str]]:
        if not names._listed and dotted.startswith("torch"):
            names.load(make_once(cache / "names.json", lambda: (plain(names, dotted), names.dump())[1]))
            names.has_new_answers = True
        return plain(names, dotted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RuntimeNames, "_list", list_once)
        yield


@contextmanager
def keep_pools() -> Iterator[None]:
    """Have work that is mapped use pools of workers that stay until the block ends: each imports for a second or more.

    What a call depends on besides its arguments, the working folder and the environment, goes with it.
    """
    kept: dict[int, ProcessPool] = {}

    @contextmanager
    def process_pool(jobs: int | None = None) -> Iterator[ProcessPool]:
        number = min(jobs or workers.available_cores(), 2)
        if number not in kept or not kept[number].active:
            kept[number] = stack.enter_context(PLAIN_POOL(number))
        pool = kept[number]
        try:
            yield pool
        except BaseException:
            kept.pop(number, None)
            pool.stop()
            pool.join()
            raise

    def submit(pool: ProcessPool, work: Callable[..., Any], *args: Any, **kwargs: Any) -> "Future[Any]":
        if pool not in kept.values():
            return PLAIN_SUBMIT(pool, work, *args, **kwargs)
        return PLAIN_SUBMIT(pool, _work_there, str(Path.cwd()), dict(os.environ), work, args, kwargs)

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for module in (workers, index):  # the index of facts has its parser from the one, under a name of its own
            patch.setattr(module, "process_pool", process_pool)
            patch.setattr(module, "submit", submit)
        yield


def _work_there(
    folder: str, environment: dict[str, str], work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    os.chdir(folder)
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
    return work(*args, **kwargs)
