"""The folder through which tasks exchange files: one that all machines mount, or any address that fsspec can write to.

At an address (`s3://...`) files are downloaded before they are read and uploaded after they are written; the local
copies disappear with the task. A task whose files are incomplete leaves no marker and is run again, and a second run
writes the same bytes: so an address needs neither renaming nor locks.
"""

import contextlib
import json
import os
import tempfile
import weakref
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import (
    describe_process,
    make_scratch,
    own,
    remove_dead,
    remove_path,
    remove_unfinished,
    write_text,
)
from lemur_core.files.errors import UserError

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
