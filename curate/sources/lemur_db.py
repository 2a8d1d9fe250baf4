"""LEMUR as currently published: a compressed SQLite database on the Hugging Face Hub, one file per version.

The Hub lists the versions with the digests of their files. A file may be replaced under the same name, so cached files
are named by version and content.

Source: `ab/nn/util/{Const.py,hf/{DB_from_HF,HF}.py}` of https://github.com/ABrain-One/nn-dataset
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.hf_api import RepoFile
from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from curate.sources.database import read_database, unpack
from curate.sources.rows import RowSource, SourceRow
from lemur_core.files.atomic import make_scratch, remove_dead, sha256_file, write_text
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError, UsageError, UserError
from lemur_core.files.progress import note
from manifests.folders.manifest import Input
from manifests.provenance.licenses import NOASSERTION, license_of_fields
from manifests.provenance.swhid import blob_sha1
from manifests.publish.hub import Hub
from manifests.records import Record

REPOSITORY = "NN-Dataset/LEMUR_DB"
_REPO_TYPE = "model"
_PREFIX = "ab.nn.zst-"
_AGAIN = "finished downloads are kept"


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

    Args:
        version: the version of the database; None for the newest on the Hub.
    """

    def __init__(self, version: str | None = None, *, hub: Hub | None = None) -> None:
        self._version = None if version is None else _check_version(version)
        self._hub = hub or Hub()
        self._database_file: tuple[Path, _DatabaseFacts] | None = None
        super().__init__("lemur-db" if self._version is None else f"lemur-db@{self._version}")

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield the rows of the cached database; fetch it first if necessary.

        Raises: RetryableError if the Hub cannot be reached; UserError if it has no such version, if a file differs from
            the Hub's listing, or from `unpack` and `read_database`.
        """
        yield from read_database(self._database()[0], self.name)

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
        try:
            listing = self._hub.call(REPOSITORY, self._list_versions, again=_AGAIN)
        except RetryableError as error:
            return self._find_without_hub(error)
        version = self._choose_version(listing)
        file = listing.files[version]
        folder = cache_folder("lemur-db", f"{version}-{(file.lfs.sha256 if file.lfs else file.blob_id)[:16]}")
        remove_dead(folder)
        return _find_cached(folder) or self._fetch(version, listing, folder)

    def _find_without_hub(self, error: RetryableError) -> tuple[Path, _DatabaseFacts]:
        """Return the newest cached copy of the requested version. Raises: `error`, with advice, if there is none."""
        cached = [item for folder in cache_folder("lemur-db").glob("*-*") if (item := _find_cached(folder)) is not None]
        known = sorted({facts.version for _, facts in cached}, key=Version)
        matching = [item for item in cached if item[1].version == self._version]
        if not matching:
            in_cache = f"lemur-db@{', lemur-db@'.join(known)} (in the cache), " if known else ""
            raise RetryableError(f"{error}; without the Hub there are {in_cache}lemur and files") from error
        path, facts = max(matching, key=lambda item: item[0].stat().st_mtime_ns)
        note(f"{self.name}: the Hub cannot be reached; the copy in the cache is read ({facts.packed.sha256[:16]}…)")
        return path, facts

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
            options: dict[str, Any] = {"repo_type": _REPO_TYPE, "revision": listing.commit, "local_dir": scratch}
            packed = Path(self._hub.call(what, lambda: fetch(REPOSITORY, file.path, **options), again=_AGAIN))
            facts = _DatabaseFacts(version=version, packed=_check_download(packed, file, what), license=listing.license)
            unpack(packed, folder / _DATABASE, what)
        write_text(folder / _FACTS, facts.model_dump_json() + "\n")
        return folder / _DATABASE, facts


_DATABASE, _FACTS = "ab.nn.db", "facts.json"


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


def _check_version(version: str) -> str:
    if not _is_version(version):
        raise UsageError(f"lemur-db@{version}: not a version; for example lemur-db@2.2.11, or lemur-db for the newest")
    return str(Version(version))
