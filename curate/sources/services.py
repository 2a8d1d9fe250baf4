"""Rows from a dataset of the Hugging Face Hub, from the LEMUR API installed in this environment, and from its database.

LEMUR is currently published as a compressed SQLite database on the Hub, one file per version. The Hub lists the
versions with the digests of their files. A file may be replaced under the same name, so cached files are named by
version and content.

Source: `ab/nn/util/{Const.py,hf/{DB_from_HF,HF}.py}` of https://github.com/ABrain-One/nn-dataset
"""

import contextlib
import hashlib
import importlib
import importlib.metadata
import io
import json
import sqlite3
import sys
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub.hf_api import RepoFile
from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from curate.sources.database import parse_arch_uid, read_database, read_measured, unpack
from curate.sources.files import OF_ROWS
from curate.sources.rows import BATCH_ROWS, COLUMNS, MeasuredFacts, RowSource, SourceRow, check_columns, read_row
from lemur_core.files import Json
from lemur_core.files.atomic import make_scratch, remove_dead, sha256_file, write_text
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError, UsageError, UserError
from lemur_core.files.foreign import BoundedStream, check_growth
from lemur_core.files.progress import note
from manifests.folders.manifest import Input
from manifests.provenance.licenses import NOASSERTION, license_of_fields
from manifests.provenance.swhid import blob_sha1
from manifests.publish.hub import Hub, hub_errors, parse_dataset
from manifests.records import Record

_ADVICE = "check the network, run again"


class _LibrariesService(RowSource):
    """A source without files: the manifest names it with the digest of its rows, as JSON, in order."""

    _input: Input | None = None
    _label: str | None = None  # its name in the manifest, if not that of the source

    @abstractmethod
    def hand_over(self) -> Iterator[SourceRow]:
        """Request the rows again."""

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield the rows as they are returned."""
        digest, size = hashlib.sha256(), 0
        for row in self.hand_over():
            line = json.dumps(row, sort_keys=True).encode() + b"\n"
            digest.update(line)
            size += len(line)
            yield row
        self._input = Input(name=self._label or self.name, sha256=digest.hexdigest(), bytes=size)

    def inputs(self) -> list[Input]:
        """Return the source, with the digest of its rows."""
        if self._input is None:
            deque(self.read_rows(), maxlen=0)
        assert self._input is not None
        return [self._input]


class HubDataset(_LibrariesService):
    """All splits of one dataset, in the order of their names."""

    def __init__(self, spec: str, *, hub: Hub | None = None) -> None:
        self._repo, self._revision = parse_dataset(spec)
        self._hub = hub or Hub()
        super().__init__(spec)

    def hand_over(self) -> Iterator[SourceRow]:
        """Yield the rows of the splits, each in its order.

        Raises: RetryableError if the Hub cannot be reached; UserError if the dataset does not exist, cannot be read as
            rows, or lacks a required column.
        """
        import datasets

        size, packed = 0, -1  # of all rows, and of their files: requested once, if the rows are many enough to matter
        with hub_errors(self.name, _ADVICE), _bounded_decompression(self.name):
            splits = datasets.load_dataset(self._repo, revision=self._revision, streaming=True)
            for split in sorted(splits):
                where, rows = f"{self.name}, split {split}", splits[split]
                columns = rows.column_names  # None if only the rows themselves have them
                if columns is not None:
                    check_columns(where, columns)
                    rows = rows.select_columns([name for name in COLUMNS if name in columns])
                for record in rows:
                    if columns is None:
                        columns = list(record)
                        check_columns(where, columns)
                    row = read_row(record)
                    size += sum(len(value) for value in row.values() if isinstance(value, str))
                    if size > OF_ROWS["floor"]:
                        packed = self._count_bytes() if packed < 0 else packed
                        check_growth(self.name, packed, size, **OF_ROWS)
                    yield row

    def _count_bytes(self) -> int:
        """Return the size of the dataset's files, as the Hub lists them."""
        hub = self._hub

        def list_sizes() -> list[int]:
            options: Json = {"repo_type": "dataset", "revision": self._revision, "recursive": True}
            return [getattr(item, "size", 0) for item in hub.api().list_repo_tree(self._repo, **options)]

        with hub.session():
            return sum(hub.call(self.name, list_sizes, again="it is read from its beginning"))


@contextlib.contextmanager
def _bounded_decompression(where: str) -> Iterator[None]:
    """Let the library that reads datasets decompress files only within our bounds, until the block ends."""
    from fsspec.compression import compr, register_compression

    def bound(decompress: Callable[..., Any]) -> Callable[..., Any]:
        def open_bounded(packed: Any, mode: str = "rb", **options: Any) -> Any:
            content = decompress(packed, mode=mode, **options)
            return content if "r" not in mode else io.BufferedReader(BoundedStream(where, packed, content))

        return open_bounded

    originals = {name: decompress for name, decompress in compr.items() if name is not None}
    for name, decompress in originals.items():
        register_compression(name, bound(decompress), (), force=True)
    try:
        yield
    finally:
        for name, decompress in originals.items():
            register_compression(name, decompress, (), force=True)


#: The API's column for the `arch_uid`, in later releases of nn-dataset.
_ID = "nn_id"
_OWN_MODULES = ("ab", "ab.nn", "ab.nn.api")
_INSTEAD = "or curate the released corpus: lemur curate lemur"

#: The errors of foreign code while it is imported or reads its database; any other is a bug that needs a traceback.
_FAILURES = (OSError, sqlite3.Error, AttributeError, KeyError, RuntimeError, TypeError, ValueError)


class InstalledLemur(_LibrariesService):
    """`ab.nn.api.data(only_best_accuracy=True)` of this environment. The API hands over all its rows at once.

    Source: https://github.com/ABrain-One/nn-dataset
    """

    def __init__(self) -> None:
        super().__init__("installed")
        self._frame: Any = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            self._label = f"installed (nn-dataset {importlib.metadata.version('nn-dataset')})"

    def hand_over(self) -> Iterator[SourceRow]:
        """Yield the API's rows in its order.

        Raises: UserError if the API cannot be imported or fails.
        """
        if self._frame is None:
            self._frame = _load()
        return _read_frame(self._frame)


def _load() -> Any:
    # The API prints while it builds its database; standard output belongs to the summary of --json.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            frame = importlib.import_module("ab.nn.api").data(only_best_accuracy=True)
        except ImportError as error:
            raise UserError(_explain_import(error)) from error
        except _FAILURES as error:
            raise UserError(f"installed: ab.nn.api.data fails: {_line(error)}; mend it, {_INSTEAD}") from error
    columns = getattr(frame, "columns", None)
    if columns is None:
        raise UserError(f"installed: ab.nn.api.data returned a {type(frame).__name__}, not a table; {_INSTEAD[3:]}")
    check_columns("installed: ab.nn.api.data", list(columns))
    return frame[[name for name in (*COLUMNS, _ID) if name in columns]]


def _explain_import(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and error.name not in _OWN_MODULES:
        return (
            f"installed: ab.nn.api needs {error.name}, which is not installed here; "
            f"pip install the package that holds it, or nn-dataset==2.1.0 with its dependencies, {_INSTEAD}"
        )
    return (
        f"installed: ab.nn.api cannot be imported: {_line(error)}; "
        f"pip install nn-dataset==2.1.0 in this environment, {_INSTEAD}"
    )


def _read_frame(frame: Any) -> Iterator[SourceRow]:
    names = list(frame.columns)
    for start in range(0, len(frame), BATCH_ROWS):
        part = frame.iloc[start : start + BATCH_ROWS]
        tables = (part, part.notna())
        for values, known in zip(*(table.itertuples(index=False, name=None) for table in tables), strict=True):
            record = {name: value for name, value, is_known in zip(names, values, known, strict=True) if is_known}
            code, id_ = record.get("nn_code"), record.get(_ID)
            if isinstance(code, str) and isinstance(id_, str):
                record.setdefault("arch_uid", parse_arch_uid(code, id_))
            yield read_row(record)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


REPOSITORY = "NN-Dataset/LEMUR_DB"
_REPO_TYPE = "model"
_PREFIX = "ab.nn.zst-"
_AGAIN = "finished downloads are kept"
_PATIENCE = 10.0  # seconds for an answer of the Hub, where the cache has one


class _DatabaseFacts(Record):
    """The facts about a cached version. They are written last, so that their presence means a complete database."""

    version: str
    packed: Input  # the file on the Hub
    license: str


@dataclass(frozen=True, slots=True)
class _Listing:
    commit: str
    license: str
    files: dict[str, RepoFile]  # by version


class LemurDatabase(RowSource):
    """The rows of one version of LEMUR's database, as the LEMUR API returns them, in its order.

    Args: version: the version of the database; None for the newest on the Hub.
    """

    def __init__(self, version: str | None = None, *, hub: Hub | None = None) -> None:
        if version is not None and not _is_version(version):
            raise UsageError(
                f"lemur-db@{version}: not a version; for example lemur-db@2.2.11, or lemur-db for the newest"
            )
        self._version = None if version is None else str(Version(version))
        self._hub = hub or Hub()
        self._database_file: tuple[Path, _DatabaseFacts] | None = None
        super().__init__("lemur-db" if self._version is None else f"lemur-db@{self._version}")

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield the rows of the cached database; fetch it first if necessary.

        Raises: RetryableError if the Hub cannot be reached; UserError if it has no such version, if a file differs from
            the Hub's listing, or from `unpack` and `read_database`.
        """
        yield from read_database(self._database()[0], self.name)

    def measurements(self) -> Iterator[MeasuredFacts]:
        """Yield the measurements of the database. Raises: UserError as `read_rows` does."""
        return read_measured(self._database()[0], self.name)

    def inputs(self) -> list[Input]:
        """Return the file on the Hub as an input."""
        return [self._database()[1].packed]

    def license(self, stated: str | None) -> str:
        """Return the license on the repository's card, else the one stated by the user."""
        stated_license = self._database()[1].license
        return stated_license if stated_license != NOASSERTION else super().license(stated)

    def _database(self) -> tuple[Path, _DatabaseFacts]:
        if self._database_file is None:
            with self._hub.session():
                self._database_file = self._find_or_fetch()
            self.name = self.where = f"lemur-db@{self._database_file[1].version}"
        return self._database_file

    def _find_or_fetch(self) -> tuple[Path, _DatabaseFacts]:
        known = _list_cached()
        cached = [item for item in known if self._version in (None, item[1].version)]
        # A copy in the cache is better than waiting: the Hub has one attempt to state that it holds another one.
        if cached:
            self._hub = replace(self._hub, delays=(), answer_seconds=min(_PATIENCE, self._hub.answer_seconds))
        try:
            listing = self._hub.call(REPOSITORY, self._list_versions, again=_AGAIN)
        except RetryableError as error:
            if cached:
                path, facts = max(cached, key=lambda item: (Version(item[1].version), item[0].stat().st_mtime_ns))
                copy = (
                    f"lemur-db@{facts.version}, the newest in the cache,"
                    if self._version is None
                    else "the copy in the cache"
                )
                digest = facts.packed.sha256[:16]
                note(f"{self.name}: the Hub cannot be reached; {copy} is read ({digest}…)")
                return path, facts
            names = sorted({facts.version for _, facts in known}, key=Version)
            others = f"lemur-db@{', lemur-db@'.join(names)} (in the cache), " if names else ""
            raise RetryableError(f"{error}; without the Hub there are {others}lemur and files") from error
        version = self._choose_version(listing)
        file = listing.files[version]
        folder = cache_folder("lemur-db", f"{version}-{(file.lfs.sha256 if file.lfs else file.blob_id)[:16]}")
        remove_dead(folder)
        return _find_cached(folder) or self._fetch(version, listing, folder)

    def _list_versions(self) -> _Listing:
        api = self._hub.api()
        about = api.model_info(REPOSITORY, timeout=self._hub.answer_seconds)
        assert about.sha is not None
        tree = api.list_repo_tree(REPOSITORY, revision=about.sha, repo_type=_REPO_TYPE)
        names = {item.path.removeprefix(_PREFIX): item for item in tree if isinstance(item, RepoFile)}
        files = {name: item for name, item in names.items() if item.path != name and _is_version(name)}
        stated = getattr(about.card_data, "license", None)
        return _Listing(about.sha, license_of_fields(stated if isinstance(stated, str) else "", "", []), files)

    def _choose_version(self, listing: _Listing) -> str:
        if not listing.files:
            raise UserError(
                f"{REPOSITORY}: holds no file {_PREFIX}VERSION; curate a release instead: lemur curate lemur"
            )
        versions = {Version(name): name for name in listing.files}
        version = max(versions) if self._version is None else Version(self._version)
        if version not in versions:
            known = ", ".join(versions[version] for version in sorted(versions))
            raise UserError(f"{self.name}: no such version; {REPOSITORY} has {known}")
        return versions[version]

    def _fetch(self, version: str, listing: _Listing, folder: Path) -> tuple[Path, _DatabaseFacts]:
        file, what = listing.files[version], f"lemur-db@{version}"
        note(f"fetching {file.path} ({file.size / 1e6:,.0f} MB) from {REPOSITORY}")
        with make_scratch(folder, "download") as scratch:
            fetch = self._hub.api().hf_hub_download
            options: Json = {"repo_type": _REPO_TYPE, "revision": listing.commit, "local_dir": scratch}
            packed = Path(self._hub.call(what, lambda: fetch(REPOSITORY, file.path, **options), again=_AGAIN))
            facts = _DatabaseFacts(version=version, packed=_check_download(packed, file, what), license=listing.license)
            unpack(packed, folder / _DATABASE, what)
        write_text(folder / _FACTS, facts.model_dump_json() + "\n")
        return folder / _DATABASE, facts


_DATABASE, _FACTS = "ab.nn.db", "facts.json"


def _list_cached() -> list[tuple[Path, _DatabaseFacts]]:
    """Return the databases in the cache, complete ones only."""
    return [item for folder in cache_folder("lemur-db").glob("*-*") if (item := _find_cached(folder)) is not None]


def _find_cached(folder: Path) -> tuple[Path, _DatabaseFacts] | None:
    try:
        facts = _DatabaseFacts.model_validate_json((folder / _FACTS).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError):
        return None
    return (folder / _DATABASE, facts) if (folder / _DATABASE).is_file() else None


def _check_download(packed: Path, file: RepoFile, what: str) -> Input:
    """Check a download against the Hub's listing, and describe it for the manifest."""
    size, digest = packed.stat().st_size, sha256_file(packed)
    # Files outside of LFS are small.
    same = digest == file.lfs.sha256 if file.lfs else blob_sha1(packed.read_bytes()) == file.blob_id
    if size != file.size or not same:
        raise UserError(f"{what}: {size:,} bytes, not those that the Hub states ({file.size:,}); run again")
    return Input(name=file.path, sha256=digest, bytes=size)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
