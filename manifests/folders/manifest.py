"""The manifest: inputs, parameters and outputs of a run, so that a folder can be checked and reproduced.

Readers use some of the parameters, counts and details that the manifest of each kind of folder states. One that is
missing is one clear line where it is read; what they should be, the writer itself says when `verify` derives them.
"""

import platform
import re
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, NoReturn

import pyarrow.parquet as pq
from pydantic import AfterValidator, FailFast, Field

from lemur_core.files import Json
from lemur_core.files.atomic import PAGE, PathLike, sha256_file, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.pip import find_version
from manifests.folders.tables import describe, read_bytes
from manifests.records import Record, Sha256

FILE_NAME = "manifest.json"
#: The page of a folder, on which the manifest does not depend.
INDEX, SHARDS = "index.html", "page/"

#: Packages whose releases may change results.
_VERSIONED = (
    *("lemur-curator", "numpy", "scipy", "pyarrow", "datasketch", "datasets", "mlcroissant", "pydantic", "jinja2"),
    *("libcst", "packaging", "pillow", "pyflakes", "radon"),
)


class Input(Record):
    """One input that was read."""

    name: str
    sha256: Sha256
    bytes: int


def _relative(name: str) -> str:
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute() or ".." in name.split("/"):
        raise ValueError(f"{name!r} is not a bare or relative name")
    return name


def _plain(name: str) -> str:
    if not name.isprintable() or "\\" in name or any(part[:1] in ("", ".") for part in _relative(name).split("/")):
        raise ValueError(f"{name!r} is hidden, or not a plain name")
    return name


class Output(Record):
    """One file of the folder."""

    path: Annotated[str, AfterValidator(_plain)] = Field(description="relative to the folder, with forward slashes")
    sha256: Sha256
    bytes: int
    rows: int | None = Field(default=None, description="rows of a table")


class Parent(Record):
    """A finished folder that this one was built from; its manifest states its own parents in turn."""

    kind: str = Field(min_length=1, description="as its manifest states it")
    name: Annotated[str, AfterValidator(_relative)] = Field(
        min_length=1, description="of the folder, bare or relative; a hint only, the digest tells which one it is"
    )
    sha256: Sha256 = Field(description="of its manifest.json")


class Measured(Record):
    """Measurements that differ from run to run."""

    seconds: float
    stage_seconds: dict[str, float]
    peak_memory_bytes: int = Field(description="largest resident set of the main process")
    platform: str


class Manifest(Record):
    """A run; everything except `measured` is the same for the same input, parameters and versions."""

    kind: str
    versions: dict[str, str]
    parameters: Json
    inputs: Annotated[list[Input], FailFast()]  # the first fault is told; a hundred thousand would take gigabytes
    parents: Annotated[list[Parent], FailFast()] = Field(
        default=[], description="folders of this tool that it was built from"
    )
    counts: Json
    details: Json
    outputs: Annotated[list[Output], FailFast()]
    measured: Measured


class Stopwatch:
    """Seconds since it was created, and by stage since the previous lap."""

    def __init__(self) -> None:
        self._started = self._lap = time.monotonic()
        self._stages: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Record the time since the last lap under a stage."""
        now = time.monotonic()
        self._stages[stage] = round(self._stages.get(stage, 0.0) + now - self._lap, 3)
        self._lap = now

    def measure(self) -> Measured:
        """Return the measurements so far."""
        return Measured(
            seconds=round(time.monotonic() - self._started, 3),
            stage_seconds=dict(self._stages),
            peak_memory_bytes=peak_memory(),
            platform=f"{platform.system()} {platform.machine()}",
        )


def peak_memory() -> int:
    """Return the peak resident set size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, Linux KiB.
    return peak if sys.platform == "darwin" else peak * 1024


def package_versions(*more: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that affect results.

    Args: more: names of further distributions.
    Returns: versions by distribution name, `not installed` for a missing one; the first is `python`.
    """
    return {"python": platform.python_version(), **{name: find_version(name) for name in (*_VERSIONED, *more)}}


def count_rows(path: Path) -> int:
    """Return the number of rows of a Parquet table, or of lines of any other file."""
    return pq.read_metadata(path).num_rows if path.suffix == ".parquet" else path.read_bytes().count(b"\n")


def list_outputs(folder: Path) -> list[Output]:
    """Return every file of a folder with its digest, except the manifest and the page's files.

    Returns: one entry per file, sorted by path; `rows` is None for a file that is neither a table nor lines of JSON.
    """
    rows = {path: count_rows(path) for pattern in ("*.parquet", "*.jsonl") for path in folder.rglob(pattern)}
    files = [(path.relative_to(folder).as_posix(), path) for path in folder.rglob("*") if path.is_file()]
    return [
        Output(path=name, sha256=sha256_file(path), bytes=path.stat().st_size, rows=rows.get(path))
        for name, path in sorted(files)
        if name != FILE_NAME and not PAGE.fullmatch(name)
    ]


def describe_parent(folder: Path) -> Parent:
    """Return the entry by which the manifest of another folder refers to this one.

    Args: folder: a finished folder, by any path to it.
    Returns: its kind, its own name without the path, and the SHA-256 of its manifest.
    Raises: UserError if it holds no valid manifest.
    """
    return Parent(kind=read_manifest(folder).kind, name=folder.resolve().name, sha256=sha256_file(folder / FILE_NAME))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest; it is the last file of a folder.

    Args: folder, manifest: a folder whose other files are in place, and their description.
    """
    write_text(folder / FILE_NAME, manifest.model_dump_json(indent=2) + "\n")


def read_manifest(folder: PathLike) -> Manifest:
    """Read the manifest of a finished folder.

    Args:
        folder: a folder that any command wrote; the error for a folder of finished folders names them.

    Returns:
        Its kind, inputs, parameters, counts, and files with digests; the files themselves are not looked at.

    Raises:
        UserError: if there is none, it is invalid, or the folder holds a pipe, a socket or a device.

    Example:
        ```python
        from manifests import read_manifest

        print(read_manifest("snapshot").kind)
        ```
    """
    folder = Path(folder)
    path = folder / FILE_NAME
    check_plain(path)
    try:
        manifest = Manifest.model_validate_json(read_bytes(path))
        check_plain(folder)
    except FileNotFoundError:
        if not folder.exists():
            raise UserError(f"{folder}: no such folder; not a finished lemur folder") from None
        # The folder of a pipeline holds several finished folders: suggest them.
        inside = ", ".join(str(path.parent) for path in sorted(folder.glob(f"*/{FILE_NAME}")))
        more = f"; in it are {inside}" if inside else ""
        raise UserError(f"{folder}: no {FILE_NAME}; not a finished lemur folder{more}") from None
    except NotADirectoryError:
        raise UserError(f"{folder}: is a file; give the folder that lemur wrote") from None
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read: {describe(error, path)}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a valid manifest: {describe(error)}; create the folder again") from None
    stated = {name: StatedFacts(f"{path}: {name}", getattr(manifest, name)) for name in _STATED}
    return manifest.model_copy(update=stated)


#: The fields of a manifest whose contents depend on its kind.
_STATED = ("parameters", "counts", "details")


class StatedFacts(dict[str, Any]):
    """The statements under one heading of a manifest; a missing one is one clear line where it is read."""

    def __init__(self, where: str, facts: Mapping[str, object]) -> None:
        super().__init__(facts)
        self._where = where

    def __missing__(self, name: str) -> NoReturn:
        raise UserError(f"{self._where}.{name} is missing; create the folder again")


#: Data and texts, by their suffix: what a page may link to, and what a folder of an unknown kind may have.
DATA = re.compile(r"(?:[^/]+/)*[^/]+\.(?:md|txt|json|jsonl|csv|parquet|png|py|pt|safetensors)")
