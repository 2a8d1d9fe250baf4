"""The licence of a package, from the fields of its metadata or its licence files.

Source: https://packaging.python.org/specifications/core-metadata/
"""

import re
from collections.abc import Iterable, Sequence

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from manifests.licenses import NOASSERTION, all_of, license_of_text

#: Trove classifiers that name one licence; "BSD License" and the like do not.
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": "CC0-1.0",
    "GNU Affero General Public License v3": "AGPL-3.0-only",
    "GNU Affero General Public License v3 or later (AGPLv3+)": "AGPL-3.0-or-later",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "GNU Lesser General Public License v2 (LGPLv2)": "LGPL-2.0-only",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.0-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "zlib/libpng License": "Zlib",
}

#: The free text of a License field, in lower case, without "the", "license", "version" and signs.
_FIELDS = {
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache software 2.0": "Apache-2.0",
    "bsd 2 clause": "BSD-2-Clause",
    "bsd 3 clause": "BSD-3-Clause",
    "3 clause bsd": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "modified bsd": "BSD-3-Clause",
    "simplified bsd": "BSD-2-Clause",
    "agpl v3": "AGPL-3.0",
    "agplv3": "AGPL-3.0",
    "gpl v2": "GPL-2.0",
    "gplv2": "GPL-2.0",
    "gpl v3": "GPL-3.0",
    "gplv3": "GPL-3.0",
    "lgplv3": "LGPL-3.0",
    "mit": "MIT",
    "mpl 2.0": "MPL-2.0",
    "mozilla public 2.0": "MPL-2.0",
    "isc": "ISC",
    "unlicense": "Unlicense",
    "cc by nc 4.0": "CC-BY-NC-4.0",
}


def find_license(stated: str, texts: Sequence[str]) -> str:
    """The licence that metadata states, else the one that a licence file is the text of, else NOASSERTION.

    Files of several licences are joined with AND.
    """
    if stated != NOASSERTION:
        return stated
    return all_of({license_of_text(text) for text in texts} - {NOASSERTION})


def license_of_fields(expression: str, field: str, classifiers: Iterable[str]) -> str:
    """The licence that the fields License-Expression, License and Classifier state, in this order; else NOASSERTION.

    Args: classifiers: with or without their leading `License :: OSI Approved ::`.
    """
    for text in (expression, field):
        known = _expression(text)
        if known != NOASSERTION:
            return known
    named = {_CLASSIFIERS.get(line.rpartition("::")[2].strip(), "") for line in classifiers} - {""}
    if len(named) == 1:
        return named.pop()
    return license_of_text(field) if len(field) > 200 else NOASSERTION


def _expression(text: str) -> str:
    text = text.strip()
    plain = re.sub(r"\b(?:the|license|licence|version|software)\b|[^a-z0-9.+ ]", " ", text.lower())
    known = _FIELDS.get(" ".join(plain.split()))
    if known:
        return known
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return NOASSERTION
