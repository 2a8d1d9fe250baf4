"""Where the rows of a source come from: the finished folders that its files lie in, and the licence that it states."""

import email
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from curate.rows import Source
from curate.sources import SeveralSources
from curate.sources.folders import ExtractionFolder
from curate.sources.lemur import LemurRelease
from lemur_core.files.atomic import sha256_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from manifests.licenses import NOASSERTION, all_of, license_of_fields
from manifests.manifest import FILE_NAME, Manifest, Parent, parent_of, read_manifest


@runtime_checkable
class OnDisk(Protocol):
    """A source whose rows come from files."""

    def files(self) -> list[Path]:
        """Every file that is read, sorted."""
        ...


def parents_of(source: Source) -> list[Parent]:
    """The parents of what is made from a source, by kind, name and digest; none for one that reads no files."""
    parts = source.parts if isinstance(source, SeveralSources) else (source,)
    return find_parents(file for part in parts if isinstance(part, OnDisk) for file in part.files())


def find_parents(files: Iterable[Path]) -> list[Parent]:
    """The finished folders that list these files in their manifests, each once.

    A folder is no parent if one of the files is not as its manifest states: what was read came from elsewhere then.
    """
    by_folder: dict[Path, list[Path]] = {}
    for file in files:
        for folder in file.absolute().parents:
            if folder in by_folder or (folder / FILE_NAME).is_file():
                by_folder.setdefault(folder, []).append(file.absolute())
    found = [parent_of(folder) for folder, inside in sorted(by_folder.items()) if _lists(folder, inside)]
    return sorted(set(found), key=lambda parent: (parent.kind, parent.name, parent.sha256))


def _lists(folder: Path, files: list[Path]) -> bool:
    """Whether a folder is a finished one that lists some of these files, and each of those with the digest it has."""
    manifest = _manifest(folder)
    if manifest is None:
        return False
    stated = {item.path: item.sha256 for item in manifest.outputs}
    listed = {file: name for file in files if (name := file.relative_to(folder).as_posix()) in stated}
    wrong = next(
        (name for file, name in listed.items() if not file.is_file() or sha256_file(file) != stated[name]), None
    )
    if wrong is not None:
        note(f"{folder}: {wrong} is not as its {FILE_NAME} states; the folder is not named as a parent")
    return bool(listed) and wrong is None


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except UserError:  # other programs have files of this name too
        return None


def source_license(source: Source, stated: str | None = None) -> str:
    """The SPDX expression of a source; for files, folders and the Hub, where rows state none, what a user has stated.

    Of a LEMUR release it is that of the distribution's metadata; of blocks and of several sources it is all of theirs
    together, since a record does not say which of them it is from.

    Args: stated: by the user; NOASSERTION if there is none.
    Source: https://packaging.python.org/specifications/core-metadata/
    """
    if isinstance(source, SeveralSources):
        return all_of(source_license(part, stated) for part in source.parts)
    if isinstance(source, ExtractionFolder):
        return all_of(source.licenses())
    if not isinstance(source, LemurRelease):
        return stated or NOASSERTION
    (wheel,) = (item.name for item in source.inputs())
    with zipfile.ZipFile(cache_folder("lemur", source.version) / wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        fields = email.message_from_bytes(archive.read(name))
    texts = (fields.get("License-Expression") or "", fields.get("License") or "")
    return license_of_fields(*texts, fields.get_all("Classifier") or [])
