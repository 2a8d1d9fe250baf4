"""Rows from a dataset of the Hugging Face Hub, and from LEMUR's database there.

LEMUR is currently published as a compressed SQLite database on the Hub, one file per version. The Hub lists the
versions with the digests of their files, and its client keeps what was fetched.

Source: `ab/nn/util/{Const.py,hf/{DB_from_HF,HF}.py}` of https://github.com/ABrain-One/nn-dataset
"""

import contextlib
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from huggingface_hub.hf_api import RepoFile
from packaging.version import InvalidVersion, Version

from curate.sources.folders import RECORDS
from curate.sources.lemur import find_plain, parse_version, read_database
from curate.sources.rows import FileSource, RowSource, SourceRow, describe_file, open_table
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from manifests.folders.manifest import FILE_NAME, Input
from manifests.provenance.licenses import NOASSERTION, license_of_fields
from manifests.provenance.swhid import blob_sha1
from manifests.publishing.hub import Hub, parse_dataset

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
        for file in files:
            where = f"{self.name}/{file.path}"
            path, given = _download(hub, self._repo, "dataset", about.sha, file, where, where)
            table = open_table(path, where)
            assert table is not None
            tables.append((table, given))
        return tables


def _list_files(hub: Hub, repo: str, kind: str, revision: str | None = None) -> tuple[Any, list[RepoFile]]:
    """Return what the Hub states about a revision of a repository, and its files."""
    look = hub.api().dataset_info if kind == "dataset" else hub.api().model_info
    about = look(repo, revision=revision, timeout=hub.answer_seconds)
    tree = hub.api().list_repo_tree(repo, repo_type=kind, revision=about.sha, recursive=True)
    return about, [item for item in tree if isinstance(item, RepoFile)]


def _download(hub: Hub, repo: str, kind: str, commit: str, file: RepoFile, what: str, name: str) -> tuple[Path, Input]:
    """Fetch a file that the Hub's own cache lacks, and check it against the listing.

    Args: what: the file in messages; name: in the manifest.
    """
    fetch = partial(hub.api().hf_hub_download, repo, file.path, repo_type=kind, revision=commit)
    path = Path(hub.call(what, fetch, again=_AGAIN))
    given = describe_file(path, name)
    # Files outside of LFS are small.
    same = given.sha256 == file.lfs.sha256 if file.lfs else blob_sha1(path.read_bytes()) == file.blob_id
    if given.bytes != file.size or not same:
        raise UserError(f"{what}: {given.bytes:,} bytes, not those that the Hub states ({file.size:,}); run again")
    return path, given


REPOSITORY = "NN-Dataset/LEMUR_DB"
_PREFIX = "ab.nn.zst-"


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
        """Yield the rows of the database; fetch it first if the Hub's cache lacks it.

        Raises: RetryableError if the Hub cannot be reached; UserError if it has no such version, if a file differs from
            the Hub's listing, or from `unpack` and `read_database`.
        """
        packed, _, _ = self._fetched
        return read_database(find_plain(packed, self.name), self.name)

    def inputs(self) -> list[Input]:
        """Return the file on the Hub as an input."""
        return [self._fetched[1]]

    def license(self, stated: str | None) -> str:
        """Return the license on the repository's card, else the one stated by the user."""
        on_card = self._fetched[2]
        return on_card if on_card != NOASSERTION else super().license(stated)

    @cached_property
    def _fetched(self) -> tuple[Path, Input, str]:
        """The packed database, its description, and the license on the card."""
        hub = self._hub
        about, files = hub.call(REPOSITORY, partial(_list_files, hub, REPOSITORY, "model"), again=_AGAIN)
        versions: dict[Version, RepoFile] = {}
        for file in files:
            with contextlib.suppress(InvalidVersion):
                if file.path.startswith(_PREFIX):
                    versions[Version(file.path.removeprefix(_PREFIX))] = file
        version = self._version or max(versions, default=None)
        if version not in versions:
            known = ", ".join(map(str, sorted(versions))) or f"no file {_PREFIX}VERSION; curate lemur instead"
            raise UserError(f"{self.name}: no such version; {REPOSITORY} has {known}")
        file = versions[version]
        self.name = self.where = f"lemur-db@{file.path.removeprefix(_PREFIX)}"
        note(f"reading {file.path} ({file.size / 1e6:,.0f} MB) of {REPOSITORY}")
        packed, given = _download(hub, REPOSITORY, "model", about.sha, file, self.name, file.path)
        stated = getattr(about.card_data, "license", None)
        return packed, given, license_of_fields(stated if isinstance(stated, str) else "", "", [])
