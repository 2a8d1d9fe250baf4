"""Licences by their texts.

Source: https://spdx.org/licenses/
"""

import re

from manifests.licenses import NOASSERTION, all_of, is_permissive

_PERMISSION = "permission is hereby granted free of charge to any person obtaining a copy"
_FREEDOM = "to deal in the software without restriction"
_REDISTRIBUTION = "redistribution and use in source and binary forms with or without modification are permitted"
_GRANTS = "permission to use copy modify and or distribute this software for any purpose with or without fee"

#: Phrases of licence texts, as `_plain` writes them, by family: of each the first line of which all phrases are there
#: counts. Texts of one family quote each other; those of two are two licences in one file.
_FAMILIES: tuple[tuple[tuple[str, tuple[str, ...]], ...], ...] = (
    (
        ("AGPL-3.0", ("gnu affero general public license", "version 3", "remote network interaction")),
        ("LGPL-3.0", ("gnu lesser general public license", "version 3", "incorporates the terms and conditions")),
        ("LGPL-2.1", ("gnu lesser general public license", "version 2.1", "work that uses the library")),
        ("GPL-3.0", ("gnu general public license", "version 3", "basic permissions")),
        ("GPL-2.0", ("gnu general public license", "version 2", "activities other than copying")),
        ("MPL-2.0", ("mozilla public license version 2.0",)),
    ),
    (
        ("Apache-2.0", ("apache license", "version 2.0", "terms and conditions for use reproduction and distribution")),
        ("Apache-2.0", ("licensed under the apache license version 2.0",)),
    ),
    (
        ("CC-BY-NC-SA-4.0", ("attribution noncommercial sharealike 4.0 international",)),
        ("CC-BY-NC-4.0", ("attribution noncommercial 4.0 international",)),
        ("CC-BY-SA-4.0", ("attribution sharealike 4.0 international",)),
        ("CC-BY-4.0", ("attribution 4.0 international",)),
        ("CC0-1.0", ("cc0 1.0 universal",)),
    ),
    (
        ("BSD-3-Clause-Clear", (_REDISTRIBUTION, "no express or implied licenses to any party s patent rights")),
        ("BSD-3-Clause", (_REDISTRIBUTION, "endorse or promote products derived from")),
        ("BSD-2-Clause", (_REDISTRIBUTION, "redistributions in binary form must reproduce")),
    ),
    (("BSL-1.0", ("boost software license version 1.0",)),),
    (
        ("MIT", (_PERMISSION, _FREEDOM, "the above copyright notice and this permission notice")),
        ("MIT-0", (_PERMISSION, _FREEDOM, "the software is provided as is")),
    ),
    (
        ("ISC", (_GRANTS, "provided that the above copyright notice and this permission notice appear")),
        ("0BSD", (_GRANTS, "the software is provided as is")),
    ),
    (("Unlicense", ("this is free and unencumbered software released into the public domain",)),),
    (("Zlib", ("altered source versions must be plainly marked as such",)),),
)

#: Words that take back part of what a permissive text around them grants, or stand in licences that quote such texts.
_LIMITS = re.compile(
    r"\bnon ?commercial|\bcommons clause\b|\bserver side public license\b|\bbusiness source license\b|"
    r"\belastic license\b|\bpolyform\b|\buse based restrictions\b|\b(?:research|academic|educational|evaluation) "
    r"(?:use |purposes? )only\b|\bonly for (?:research|academic|educational|evaluation)\b|\buse limitation\b"
)


def license_of_text(text: str) -> str:
    """The licence of which this is the text, or those of which it holds the texts; else NOASSERTION.

    A permissive text with words that limit the use, such as "noncommercial", is not taken for what it looks like. GNU
    licences come without -only or -or-later: their text does not tell which of the two was meant.
    """
    plain = _plain(text)
    firsts = (
        next((name for name, phrases in family if all(phrase in plain for phrase in phrases)), NOASSERTION)
        for family in _FAMILIES
    )
    found = all_of(name for name in firsts if name != NOASSERTION)
    return NOASSERTION if is_permissive(found) and _LIMITS.search(plain) else found


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^a-z0-9.]+", " ", text.lower()).replace(". ", " ").split())
