"""The folder through which tasks exchange files: one that all machines mount, or any address that fsspec writes to.

At an address (`s3://...`) files are fetched before they are read and put there once they are written; what lies here
meanwhile is gone with the task. A task whose files are not all there leaves no marker and is done again, and no file
gets other bytes by that: so an address needs neither renaming nor locks.
"""

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import own, write_text
from lemur_core.files.errors import UserError

#: What is listed may be other tasks' work of this moment.
_FRESH = {"use_listings_cache": False}


class Exchange:
    """Files by name, with `/` between its parts.

    Each process, and each task, opens its own by the address: nothing but the address is pickled.
    """

    def __init__(self, address: str | Path) -> None:
        self._remote = "://" in str(address) and not str(address).startswith("file://")
        self.address = str(address) if self._remote else os.path.abspath(str(address).removeprefix("file://"))  # noqa: PTH100

    def __reduce__(self) -> tuple[Any, ...]:
        return Exchange, (self.address,)

    def __str__(self) -> str:
        return self.address

    @cached_property
    def here(self) -> Path:
        """Where files are written and read on this machine: the folder itself, or one that is gone with this object."""
        if not self._remote:
            return Path(self.address)
        scratch = tempfile.mkdtemp(prefix="lemur-work-")
        weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        return Path(scratch)

    @contextlib.contextmanager
    def begun(self, at_work: str) -> Iterator[None]:
        """The folder, made when missing, for this process until the end of the block; at an address nothing is locked.

        Args: at_work: what to say of another process that has it.
        Raises: UserError if another process has it, or it cannot be reached and written.
        """
        if not self._remote:
            with own(self.here, "lock", at_work):
                yield
            return
        try:
            if "memory" in self._files.protocol:
                raise OSError("it is of one process alone")
            self.write_text("begun", "")
        except Exception as error:  # file systems have errors of their own
            told = str(error).partition("\n")[0]
            raise UserError(f"--work {self}: cannot be written: {type(error).__name__}: {told}") from error
        yield

    def logs(self, folder: str) -> Any:
        """A folder as datatrove takes it."""
        return (f"{self.address}/{folder}", _FRESH) if self._remote else f"{self.address}/{folder}"

    def path(self, name: str) -> Path:
        """Where a file is written before it is `put`; the folder above it is made."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def put(self, *names: str) -> None:
        """Let others see files that were written."""
        if self._remote:
            for name in names:
                self._files.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
                self._files.put_file(str(self.here / name), self._at(name))

    def get(self, *names: str) -> list[Path]:
        """Files that are there already, to be read. Raises: OSError if one is not there."""
        paths = [self.path(name) if self._remote else self.here / name for name in names]
        missing = [(self._at(name), str(path)) for name, path in zip(names, paths, strict=True) if not path.exists()]
        if self._remote and missing:
            self._files.get(*map(list, zip(*missing, strict=True)))
        return paths

    def names(self, folder: str) -> list[str]:
        """The names of the files right in a folder, in order; none if it is not there."""
        if not self._remote:
            found = [path.name for path in (self.here / folder).glob("[!.]*") if path.is_file()]
        else:
            found = [path.rpartition("/")[2] for path in self._files.find(self._at(folder), maxdepth=1)]
        return [f"{folder}/{name}" for name in sorted(found)]

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        return bool(self._files.exists(self._at(name))) if self._remote else (self.here / name).exists()

    def read_text(self, name: str) -> str:
        """A text. Raises: OSError if it is not there."""
        return self.get(name)[0].read_text(encoding="utf-8")

    def write_text(self, name: str, text: str) -> None:
        """Put a text there, whole."""
        write_text(self.path(name), text)
        self.put(name)

    def remove(self, folder: str) -> None:
        """Remove a folder with all that is in it, if it is there."""
        shutil.rmtree(self.here / folder, ignore_errors=True)
        if self._remote and self._files.exists(self._at(folder)):
            self._files.rm(self._at(folder), recursive=True)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        files, root = url_to_fs(self.address, **_FRESH)
        return files, root.rstrip("/")

    @property
    def _files(self) -> Any:
        return self._opened[0]

    def _at(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"
