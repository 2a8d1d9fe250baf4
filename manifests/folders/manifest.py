"""The manifest: inputs, parameters and outputs of a run, so that a folder can be checked and reproduced.

Readers use some of the parameters, counts and details that the manifest of each kind of folder states. Every one of
them may be missing, because an older release did not state it; one that is there has its type, and is null only where
its type says so.
"""

import importlib.metadata
import platform
import re
import resource
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import GenericAlias
from typing import Annotated, Any, NoReturn

import pyarrow.parquet as pq
from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, TypeAdapter, ValidationError, create_model

from lemur_core.files import Json
from lemur_core.files.atomic import PAGE, PathLike, sha256_file, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from manifests.folders.tables import describe, read_bytes
from manifests.records import Ratio, Record, Sha256, first_fault

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
    return {"python": platform.python_version(), **{name: _find_version(name) for name in (*_VERSIONED, *more)}}


@cache  # reading a package's metadata takes milliseconds, and a folder is written with a dozen of them, twice
def _find_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


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
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a valid manifest: {describe(error)}; create the folder again") from None
    for name, type_ in STATED.get(manifest.kind, {}).items():
        try:
            TypeAdapter(type_).validate_python(getattr(manifest, name))
        except ValidationError as error:
            fault = f"{name}.{first_fault(error)}"
            raise UserError(f"{path}: not a valid manifest: {fault}; create the folder again") from None
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


_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Counts = dict[str, _Count]
_Figure = Annotated[float, Field(allow_inf_nan=False)]
_Threshold = Annotated[float, Field(gt=0, le=1)]
_Bands = Annotated[int, Field(ge=1, le=4096)]
_Text = str | None


class _Stated(BaseModel):
    """Base of what a manifest states: exact types, further keys allowed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")


class _Rows(_Stated):
    """Rows of the source by stage, of which `input` is the sum."""

    __pydantic_extra__: _Counts
    input: _Count


class _Source(_Stated):
    """A source of blocks as it was fetched."""

    name: str
    version: _Text = None
    origin: _Text = None
    digest: _Text = None
    swhid: _Text = None
    license: _Text = None


def _require(**types: Any) -> Any:
    """Return the type of an object that has all of these keys."""
    fields: Any = {name: (type_, ...) for name, type_ in types.items()}
    return create_model("Stated", __base__=_Stated, **fields)


def _allow(**types: Any) -> Any:
    """Return the type of an object that may have these keys. The default is not validated: null is not allowed."""
    fields: Any = {name: (type_, None) for name, type_ in types.items()}
    return create_model("Stated", __base__=_Stated, **fields)


def _list_of(item: Any) -> Any:
    return GenericAlias(list, (item,))


def _dict_of(value: Any) -> Any:
    return GenericAlias(dict, (str, value))


_GROUPS = _dict_of(_require(before=_Count, kept=_Count))  # codes by prefix or family
_CHAT = _require(rows=_Count, tokens=_Count, kinds=_Counts, dropped=_Count)
_SHARED = _allow(license=str)  # of all conversations, or networks
_RUNS = _allow(runs=_Count)

#: By kind, the types of parameters, counts and details. Of another kind, nothing is read but what every manifest has.
STATED: dict[str, Json] = {
    "snapshot": {
        "parameters": _allow(
            source=_Text, graph=_Text, license=_Text, seed=int, require_runs=bool,
            lexical_threshold=_Threshold, structural_threshold=_Threshold, chat=bool,
        ),
        "counts": _allow(
            rows=_Rows, networks=_Count, names=_Count, codes=_Count, splits=_Counts, prefixes=_GROUPS, families=_GROUPS,
            graphs=_require(kept=_Count), chat=_CHAT, runs=Json, licenses=Json,
        ),
        "details": _allow(
            license=str, lsh=_require(bands=_Bands, rows=_Bands, recall=Ratio),
            origins=_allow(threshold=Ratio), chat=_SHARED,
            licensed_by_row=_Count, withheld=list[Json], notes=list[str],
        ),
    },
    "extraction": {
        "parameters": _allow(corpus=_Text, seed=int, as_of=_Text, chat=Json | None),
        "counts": _allow(reached=_Counts, graphs=_allow(blocks=_Count), chat=_CHAT),
        "details": _allow(
            sources=list[_Source], withheld=_list_of(_allow(blocks=_Count)), notes=list[str], unopened=dict[str, str],
        ),
    },
    "ablation": {"parameters": _allow(data=str, variants=Json, seeds=list[int]), "counts": _RUNS},
    "synthesis": {"counts": _dict_of(_require(attempts=_Count, accepted=_Count)), "details": _SHARED},
    "experts-evaluation": {
        "counts": _require(
            scores=dict[str, dict[str, dict[str, _Figure]]], routing=_dict_of(list[_Count]), elsewhere=_Count
        )
    },
}  # fmt: skip


#: Data and texts, by their suffix: what a page may link to, and what a folder of an unknown kind may have.
DATA = re.compile(r"(?:[^/]+/)*[^/]+\.(?:md|txt|json|jsonl|csv|parquet|png|py|pt|safetensors)")
