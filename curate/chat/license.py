"""The licence of the records, as their source states it."""

import email
import zipfile

from curate.rows import Source
from curate.sources.extraction import ExtractionFolder
from curate.sources.lemur_release import LemurRelease
from curate.sources.several import SeveralSources
from manifests.cache import cache_folder
from manifests.licenses import NOASSERTION, license_of_fields


def source_license(source: Source) -> str:
    """The SPDX expression of a source; NOASSERTION for files, folders and the Hub, where rows state none.

    Of a LEMUR release it is that of the distribution's metadata; of blocks and of several sources it is all of theirs
    together, since a record does not say which of them it is from.

    Source: https://packaging.python.org/specifications/core-metadata/
    """
    if isinstance(source, SeveralSources):
        return _together({source_license(part) for part in source.parts})
    if isinstance(source, ExtractionFolder):
        return _together(source.licenses())
    if not isinstance(source, LemurRelease):
        return NOASSERTION
    (wheel,) = (item.name for item in source.inputs())
    with zipfile.ZipFile(cache_folder("lemur", source.version) / wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        fields = email.message_from_bytes(archive.read(name))
    stated = (fields.get("License-Expression") or "", fields.get("License") or "")
    return license_of_fields(*stated, fields.get_all("Classifier") or [])


def _together(licenses: set[str]) -> str:
    """Under all of them at once; NOASSERTION if one of them is, or there is none."""
    if not licenses or NOASSERTION in licenses:
        return NOASSERTION
    parts = sorted(licenses)
    return parts[0] if len(parts) == 1 else " AND ".join(f"({one})" if " OR " in one else one for one in parts)
