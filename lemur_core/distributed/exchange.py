"""The folder through which tasks exchange files: one that all machines mount, or any address that fsspec can write to.

At an address (`s3://...`) files are downloaded before they are read and uploaded after they are written; the local
copies disappear with the task. A task whose files are incomplete leaves no marker and is run again, and a second run
writes the same bytes: so an address needs neither renaming nor locks.

A part of a run is one task of one step:

    steps/STEP/step.json          the number of the step in the run, and how many tasks it has
    steps/STEP/tasks/RANK         where a task was started, and why it failed
    steps/STEP/completions/RANK   what a finished task wrote: size and digest of each file, by name
    steps/STEP/logs/              a log of each task

A part is done once the last of these lists its files. A step reads what earlier ones wrote through `fetch_parts`, which
refuses what is missing or differs from the list; that part then counts as not done, and the next run computes it again.
"""

import contextlib
import json
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lemur_core.files import Json
from lemur_core.files.atomic import (
    describe_process,
    make_scratch,
    own,
    remove_dead,
    remove_unfinished,
    sha256_file,
    write_text,
)
from lemur_core.files.cache import remove_path
from lemur_core.files.errors import UsageError, UserError

#: Other tasks may write while this one lists files, so listings must not be cached.
_FRESH = {"use_listings_cache": False}

#: The file that the command locks while it works in a folder; it says which process that is.
LOCK = "lock"


class Exchange:
    """Files by name, with `/` as the separator.

    Each process, and each task, opens its own exchange by the address: only the address is pickled.
    """

    def __init__(self, address: str | Path) -> None:
        self.remote = "://" in str(address) and not str(address).startswith("file://")
        self.address = str(address) if self.remote else os.path.abspath(str(address).removeprefix("file://"))  # noqa: PTH100
        self._recorded: list[str] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Exchange, (self.address,)

    def __str__(self) -> str:
        return self.address

    @cached_property
    def here(self) -> Path:
        """The local folder for reading and writing: the exchange itself, or a temporary folder that lives as long as
        this object.
        """
        if not self.remote:
            return Path(self.address)
        temporary = Path(tempfile.gettempdir())
        remove_dead(temporary)  # the copies of tasks that were killed on this machine
        scratch = make_scratch(temporary, "work")
        self._end = weakref.finalize(self, scratch.cleanup)
        return Path(scratch.name)

    def discard_copies(self) -> None:
        """Remove the local copies of an address; the process may be killed before it ends by itself."""
        if self.remote and "here" in self.__dict__:
            self._end()
            del self.here

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Create the folder if needed and lock it until the end of the block; an address is not locked.

        Raises: UserError if another process holds the lock, or the folder cannot be reached or written.
        """
        if not self.remote:
            with own(self.here, LOCK, "another run works there", "--work"):
                yield
            return
        try:
            if "memory" in self._files.protocol:
                raise OSError("it is of one process alone")
            self.write_text("begun", json.dumps(describe_process()))
        except Exception as error:  # each file system raises its own exceptions
            message = str(error).partition("\n")[0]
            raise UserError(f"--work {self}: cannot be written: {type(error).__name__}: {message}") from error
        yield

    def sweep(self) -> None:
        """Remove the unfinished files of killed tasks; call this only while no task uses the folder."""
        if not self.remote:
            for folder, _, _ in os.walk(self.here):
                remove_unfinished(Path(folder))

    def logs(self, folder: str) -> Any:
        """Return a folder in the form that datatrove takes."""
        return (f"{self.address}/{folder}", _FRESH) if self.remote else f"{self.address}/{folder}"

    def path(self, name: str) -> Path:
        """Return the local path to write a file to before `put`; create its parent folder."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def put(self, *names: str) -> None:
        """Publish files that were written, so that other tasks can read them."""
        self._recorded += names
        if self.remote:
            for name in names:
                self._files.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
                self._files.put_file(str(self.here / name), self._at(name))

    @contextlib.contextmanager
    def record_names(self) -> Iterator[list[str]]:
        """Yield a list that receives the names of all files that are published in the block."""
        self._recorded = []
        yield self._recorded

    def get(self, *names: str) -> list[Path]:
        """Return local paths of existing files, to read. Raises: OSError if one does not exist."""
        paths = [self.path(name) if self.remote else self.here / name for name in names]
        missing = [(self._at(name), str(path)) for name, path in zip(names, paths, strict=True) if not path.exists()]
        if self.remote and missing:
            self._files.get(*map(list, zip(*missing, strict=True)))
        return paths

    def get_existing(self, *names: str) -> dict[str, Path]:
        """Return local paths, to read, of those files that exist, by name."""
        with contextlib.suppress(FileNotFoundError):
            return {name: path for name, path in zip(names, self.get(*names), strict=True) if path.exists()}
        present = [name for name in names if self.has(name)]
        return dict(zip(present, self.get(*present), strict=True))

    def names(self, folder: str) -> list[str]:
        """Return the names of the files directly in a folder, sorted; none if the folder does not exist."""
        if not self.remote:
            # Hidden files are those that are still being written.
            names = [path.name for path in (self.here / folder).glob("[!.]*") if path.is_file()]
        else:
            names = [path.rpartition("/")[2] for path in self._files.find(self._at(folder), maxdepth=1)]
        return [f"{folder}/{name}" for name in sorted(names)]

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder, sorted; none if it does not exist."""
        if not self.remote:
            return sorted(path.name for path in (self.here / folder).glob("*") if path.is_dir())
        with contextlib.suppress(FileNotFoundError):
            listed = self._files.ls(self._at(folder), detail=True)
            return sorted(item["name"].rpartition("/")[2] for item in listed if item["type"] == "directory")
        return []

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        return bool(self._files.exists(self._at(name))) if self.remote else (self.here / name).exists()

    def read_text(self, name: str) -> str:
        """Return the text of a file. Raises: OSError if it does not exist."""
        return self.get(name)[0].read_text(encoding="utf-8")

    def write_text(self, name: str, text: str) -> None:
        """Write a whole text file and publish it."""
        write_text(self.path(name), text)
        self.put(name)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and everything in it, if it exists."""
        remove_path(self.here / name)
        if self.remote and self._files.exists(self._at(name)):
            self._files.rm(self._at(name), recursive=True)

    @cached_property
    def _filesystem(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        files, root = url_to_fs(self.address, **_FRESH)
        return files, root.rstrip("/")

    @property
    def _files(self) -> Any:
        return self._filesystem[0]

    def _at(self, name: str) -> str:
        return f"{self._filesystem[1]}/{name}"


STEPS, PLAN, ABOUT, STARTED = "steps", "plan.json", "step.json", "tasks"
_FORMAT = 3  # of everything in the work folder
#: The folder of finished tasks: datatrove's name, which it lists to find those to run.
DONE = "completions"
_DIGITS = 16  # of a digest: enough against accidents


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the work: `run(rank, tasks)` is called once for each rank, and writes through `files`. Picklable."""

    name: str
    tasks: int
    run: Callable[[int, int], None]
    files: Exchange


@dataclass(frozen=True, slots=True)
class PartFile:
    """The name of a file, and the step and rank of the task that wrote it."""

    name: str
    step: str
    rank: int


def run_part(step: Step, rank: int) -> None:
    """Run one task of a step, and then list the files that it wrote: from then on it is done.

    Args: rank: the rank of the task, from 0.
    Raises: whatever the task raises; it is recorded before.
    """
    started = describe_process() | ({"job": job} if (job := os.environ.get("SLURM_JOB_ID")) else {})
    step.files.write_text(_task_name(step.name, STARTED, rank), json.dumps(started))
    try:
        with step.files.record_names() as names:
            step.run(rank, step.tasks)
    except Exception as error:
        failed = json.dumps(started | {"failed": describe_error(error)})
        step.files.write_text(_task_name(step.name, STARTED, rank), failed)
        raise
    written = {name: _describe(step.files.here / name) for name in sorted(names)}
    step.files.write_text(_task_name(step.name, DONE, rank), json.dumps(written, indent=0))


def describe_error(error: BaseException) -> str:
    """Return the first line of an error, with its type unless it is one that the user can mend."""
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0]


def begin(files: Exchange, parameters: Mapping[str, object]) -> None:
    """Record the parameters of a run in the work folder, or check that it is the same run to resume.

    Args: parameters: everything that the run depends on, with the digests of its inputs; serializable as JSON.
    Raises: UserError naming what differs if the folder belongs to a run with other parameters.
    """
    text = json.dumps({"format": _FORMAT, **parameters}, indent=2)
    if not files.has(PLAN):
        files.write_text(PLAN, text)
        return
    try:
        older = json.loads(files.read_text(PLAN))
    except ValueError:
        older = None
    wanted = json.loads(text)
    if older != wanted:
        differs = ", ".join(_find_differences(wanted, older)) if isinstance(older, dict) else PLAN
        raise UserError(f"{files}: holds a run that differs in {differs}; choose another --work, or remove it")


def _find_differences(wanted: Json, older: Json) -> Iterator[str]:
    for name in sorted({*wanted, *older}):
        new, old = wanted.get(name), older.get(name)
        if new == old:
            continue
        if isinstance(new, dict) and isinstance(old, dict):
            name = f"{name} ({', '.join(sorted(key for key in {*new, *old} if new.get(key) != old.get(key)))})"
        yield name


def forget(files: Exchange, step: str) -> None:
    """Mark a step to be run again, if it has ever run: remove the lists and logs of its tasks.

    Args: step: its name.
    """
    files.remove(f"{STEPS}/{step}")


def number_step(step: Step, number: int) -> None:
    """Record the place of a step in its run, and how many tasks it has, for `lemur status`.

    Args: number: counted from 1.
    """
    step.files.write_text(f"{STEPS}/{step.name}/{ABOUT}", json.dumps({"number": number, "tasks": step.tasks}))


def check_memory(memory: Mapping[str, int], kinds: Sequence[str]) -> None:
    """Check the kinds of steps that memory is to be reserved for.

    Args: memory: MiB by kind of step; "" for all other steps. kinds: the kinds of steps that the command has.
    Raises: UsageError if the command does not have one of them.
    """
    unknown = next((kind for kind in memory if kind and kind not in kinds), None)
    if unknown is not None:
        raise UsageError(f"--memory {unknown}=…: no such step; there are {', '.join(kinds)}")


def find_memory(memory: Mapping[str, int], step: Step) -> int:
    """Return the MiB to reserve for a task of a step, by its name without its pass; 0 for no reservation."""
    return memory.get(re.sub(r"^pass-\d+-", "", step.name), memory.get("", 0))


def is_done(step: Step, rank: int) -> bool:
    """Return whether a task has finished.

    Args: rank: the rank of the task, from 0.
    Returns: True once the list of its files is written.
    """
    return step.files.has(_task_name(step.name, DONE, rank))


def fetch_parts(wanted: Sequence[PartFile], files: Exchange) -> list[Path]:
    """Return local paths of files that finished tasks wrote, each as its task left it.

    Args: wanted: the files, in the order of the result.
    Returns: paths in the folder itself, or of copies that disappear with the task.
    Raises: UserError naming the first file that is missing or differs; the parts of all such files are not done then.
    """
    faults = list(_find_faults(wanted, files))
    if not faults:
        return files.get(*(part.name for part in wanted))
    for part, _ in faults:
        for folder in (DONE, STARTED):
            files.remove(_task_name(part.step, folder, part.rank))
    part, fault = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    raise UserError(
        f"{files}: {part.name}, of part {part.rank} of step {part.step}, {fault}{more}; start again to compute it again"
    )


def _find_faults(wanted: Sequence[PartFile], files: Exchange) -> Iterator[tuple[PartFile, str]]:
    lists = {(part.step, part.rank): _task_name(part.step, DONE, part.rank) for part in wanted}
    paths = files.get_existing(*lists.values(), *(part.name for part in wanted))
    stated = {key: _read_list(paths.get(name)) for key, name in lists.items()}
    for part in wanted:
        path, expected = paths.get(part.name), stated[part.step, part.rank].get(part.name)
        if path is None:
            yield part, "is missing"
        elif expected is None:
            yield part, "is not of a finished task"
        elif (size := path.stat().st_size) != expected[0]:
            yield part, f"has {size} bytes, not {expected[0]}"
        elif _describe(path) != expected:
            yield part, "has changed"


def _describe(path: Path) -> list[int | str]:
    return [path.stat().st_size, sha256_file(path)[:_DIGITS]]


def _read_list(path: Path | None) -> dict[str, list[int | str]]:
    """Return size and digest of the files that a task has written, by name; nothing if the list is damaged."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
        return listed if isinstance(listed, dict) and all(len(item) == 2 for item in listed.values()) else {}
    except (ValueError, TypeError):
        return {}


def _task_name(step: str, folder: str, rank: int) -> str:
    return f"{STEPS}/{step}/{folder}/{rank:05d}"
