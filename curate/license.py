"""The licence of the records, as their source states it."""

import email
import zipfile

from curate.rows import Source
from curate.sources.extraction import ExtractionFolder
from curate.sources.lemur_release import LemurRelease
from curate.sources.several import SeveralSources
from lemur_core.files.cache import cache_folder
from manifests.license_metadata import license_of_fields
from manifests.licenses import NOASSERTION, all_of


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
