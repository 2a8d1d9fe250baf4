"""Rows from a dataset of the Hugging Face Hub, and from LEMUR's database there.

LEMUR is currently published as a compressed SQLite database on the Hub, one file per version. The Hub lists the
versions with the digests of their files. A file may be replaced under the same name, so cached files are named by
version and content.

Source: `ab/nn/util/{Const.py,hf/{DB_from_HF,HF}.py}` of https://github.com/ABrain-One/nn-dataset
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from huggingface_hub.hf_api import RepoFile
from packaging.version import InvalidVersion, Version

from curate.sources.folders import RECORDS
from curate.sources.lemur import parse_version, read_database, unpack
from curate.sources.rows import FileSource, RowSource, SourceRow, open_table
from lemur_core.files import Json
from lemur_core.files.atomic import scratch_folder, sha256_file, write_text
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from manifests.folders.manifest import FILE_NAME, Input
from manifests.provenance.licenses import NOASSERTION, license_of_fields
from manifests.provenance.swhid import blob_sha1
from manifests.publish.hub import Hub, parse_dataset
from manifests.records import Record

#: The tables of networks that a dataset may hold, by preference: those of one kind are read.
_TABLES = (".parquet",), (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"), (".csv", ".csv.gz"), (".json", ".json.gz")
_AGAIN = "finished downloads are kept"


class HubDataset(RowSource):
    """The tables of one dataset, in the order of their paths; files that the Hub's own cache lacks are fetched."""

    def __init__(self, spec: str, *, hub: Hub | None = None) -> None:
        self._repo, self._revision = parse_dataset(spec)
        self._hub = hub or Hub()
        super().__init__(spec)

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield the rows of the tables, each in its order.

        Raises: RetryableError if the Hub cannot be reached; UserError if the dataset does not exist or holds no tables,
            or one of them cannot be read or lacks a required column.
        """
        for table, _ in self._tables:
            yield from table.read_rows()

    def inputs(self) -> list[Input]:
        """Return the files that are read."""
        return [item for _, item in self._tables]

    @cached_property
    def _tables(self) -> list[tuple[FileSource, Input]]:
        """The tables of one kind, fetched; of a finished folder only its records."""
        hub, tables = self._hub, []
        about, files = hub.call(
            self.name, partial(_list_files, hub, self._repo, "dataset", self._revision), again=_AGAIN
        )
        if any(file.path == FILE_NAME for file in files):
            files = [file for file in files if file.path.startswith(f"{RECORDS}/")]
        kinds = ([file for file in files if file.path.lower().endswith(kind)] for kind in _TABLES)
        files = sorted(next(filter(None, kinds), []), key=lambda file: file.path)
        if not files:
            raise UserError(f"{self.name}: holds no Parquet, JSONL, CSV or JSON file; name a dataset of networks")
        note(f"reading {plural(len(files), 'file')} ({sum(file.size for file in files) / 1e6:,.0f} MB) of {self.name}")
        fetch = partial(hub.api().hf_hub_download, self._repo, repo_type="dataset", revision=about.sha)
        for file in files:
            where = f"{self.name}/{file.path}"
            path = Path(hub.call(where, partial(fetch, file.path), again=_AGAIN))
            table = open_table(path, where)
            assert table is not None
            tables.append((table, _check_download(path, file, where, where)))
        return tables


def _list_files(hub: Hub, repo: str, kind: str, revision: str | None = None) -> tuple[Any, list[RepoFile]]:
    """Return what the Hub states about a revision of a repository, and its files."""
    look = hub.api().dataset_info if kind == "dataset" else hub.api().model_info
    about = look(repo, revision=revision, timeout=hub.answer_seconds)
    tree = hub.api().list_repo_tree(repo, repo_type=kind, revision=about.sha, recursive=True)
    return about, [item for item in tree if isinstance(item, RepoFile)]


def _check_download(packed: Path, file: RepoFile, what: str, name: str) -> Input:
    """Check a download against the Hub's listing, and describe it for the manifest, under a name."""
    size, digest = packed.stat().st_size, sha256_file(packed)
    # Files outside of LFS are small.
    same = digest == file.lfs.sha256 if file.lfs else blob_sha1(packed.read_bytes()) == file.blob_id
    if size != file.size or not same:
        raise UserError(f"{what}: {size:,} bytes, not those that the Hub states ({file.size:,}); run again")
    return Input(name=name, sha256=digest, bytes=size)


REPOSITORY = "NN-Dataset/LEMUR_DB"
_REPO_TYPE = "model"
_PREFIX = "ab.nn.zst-"
_PATIENCE = 10.0  # seconds for an answer of the Hub, where the cache has one


class _Facts(Record):
    """The facts about a cached version. They are written last, so that their presence means a complete database."""

    version: str
    packed: Input  # the file on the Hub
    license: str


_DATABASE, _FACTS = "ab.nn.db", "facts.json"


class LemurDatabase(RowSource):
    """The rows of one version of LEMUR's database, as the LEMUR API returns them, in its order.

    Args: version: the version of the database; None for the newest on the Hub.
    """

    def __init__(self, version: str | None = None, *, hub: Hub | None = None) -> None:
        example = "lemur-db@2.2.11, or lemur-db for the newest"
        self._version = None if version is None else parse_version(f"lemur-db@{version}", example)
        self._hub = hub or Hub()
        super().__init__("lemur-db" if self._version is None else f"lemur-db@{self._version}")

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield the rows of the cached database; fetch it first if necessary.

        Raises: RetryableError if the Hub cannot be reached; UserError if it has no such version, if a file differs from
            the Hub's listing, or from `unpack` and `read_database`.
        """
        return read_database(self._database[0], self.name)

    def inputs(self) -> list[Input]:
        """Return the file on the Hub as an input."""
        return [self._database[1].packed]

    def license(self, stated: str | None) -> str:
        """Return the license on the repository's card, else the one stated by the user."""
        on_card = self._database[1].license
        return on_card if on_card != NOASSERTION else super().license(stated)

    @cached_property
    def _database(self) -> tuple[Path, _Facts]:
        path, facts = self._find_or_fetch(_list_cached())
        self.name = self.where = f"lemur-db@{facts.version}"
        return path, facts

    def _find_or_fetch(self, cached: dict[Version, tuple[Path, _Facts]]) -> tuple[Path, _Facts]:
        copy = cached.get(self._version or max(cached, default=Version("0")))
        hub = self._hub
        if copy is not None:  # it is better than waiting long for the Hub to state that it holds another one
            hub = replace(hub, answer_seconds=_PATIENCE)
        try:
            about, files = hub.call(REPOSITORY, partial(_list_files, hub, REPOSITORY, _REPO_TYPE), again=_AGAIN)
        except RetryableError as error:
            if copy is None:
                there = ", ".join([*(f"lemur-db@{version}" for version in sorted(cached)), "lemur"])
                raise RetryableError(f"{error}; without the Hub there are {there} and files") from error
            facts = copy[1]
            which = f"lemur-db@{facts.version} in the cache is read ({facts.packed.sha256[:16]}…)"
            note(f"{self.name}: the Hub cannot be reached; {which}")
            return copy
        versions: dict[Version, RepoFile] = {}
        for file in files:
            before, _, name = file.path.partition(_PREFIX)
            with contextlib.suppress(InvalidVersion):
                versions |= {} if before else {Version(name): file}
        version = self._version or max(versions, default=None)
        if version not in versions:
            known = ", ".join(map(str, sorted(versions))) or f"no file {_PREFIX}VERSION; curate lemur instead"
            raise UserError(f"{self.name}: no such version; {REPOSITORY} has {known}")
        file = versions[version]
        name = file.path.removeprefix(_PREFIX)
        content = f"{name}-{(file.lfs.sha256 if file.lfs else file.blob_id)[:16]}"
        if (copy := cached.get(version)) is not None and copy[0].parent.name == content:
            return copy
        folder = cache_folder("lemur-db", content)
        what = f"lemur-db@{name}"
        note(f"fetching {file.path} ({file.size / 1e6:,.0f} MB) from {REPOSITORY}")
        with scratch_folder("download", parent=folder) as scratch:
            where: Json = {"repo_type": _REPO_TYPE, "revision": about.sha, "local_dir": scratch}
            fetch = partial(hub.api().hf_hub_download, REPOSITORY, file.path, **where)
            packed = Path(hub.call(what, fetch, again=_AGAIN))
            stated = getattr(about.card_data, "license", None)
            license_ = license_of_fields(stated if isinstance(stated, str) else "", "", [])
            facts = _Facts(version=name, packed=_check_download(packed, file, what, file.path), license=license_)
            unpack(packed, folder / _DATABASE, what)
        write_text(folder / _FACTS, facts.model_dump_json() + "\n")
        return folder / _DATABASE, facts


def _list_cached() -> dict[Version, tuple[Path, _Facts]]:
    """Return the complete databases in the cache; of two of a version the newer one."""
    found = {}
    for path in sorted(cache_folder("lemur-db").glob(f"*/{_DATABASE}"), key=lambda path: path.stat().st_mtime_ns):
        with contextlib.suppress(OSError, ValueError):  # the facts are not there, or damaged
            facts = _Facts.model_validate_json((path.parent / _FACTS).read_bytes())
            found[Version(facts.version)] = path, facts
    return found
