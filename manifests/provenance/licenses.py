"""Determine SPDX expressions from license texts, declarations and package metadata, and which are permissive.

Source: https://packaging.python.org/specifications/core-metadata/
"""

import ast
import re
from collections.abc import Iterable, Sequence

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from lemur_core.files.errors import UsageError

_PERMISSION = "permission is hereby granted free of charge to any person obtaining a copy"
_FREEDOM = "to deal in the software without restriction"
_REDISTRIBUTION = "redistribution and use in source and binary forms with or without modification are permitted"
_GRANTS = "permission to use copy modify and or distribute this software for any purpose with or without fee"

#: Phrases of license texts, as `plain_text` writes them, by family: the first line of a family whose phrases all occur
#: counts. Texts of one family quote each other; those of two families are two licenses in one file.
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

#: Words that restrict a permissive text around them, or occur in licenses that quote such texts.
LIMITS = re.compile(
    r"\bnon ?commercial|\bcommons clause\b|\bserver side public license\b|\bbusiness source license\b|"
    r"\belastic license\b|\bpolyform\b|\buse based restrictions\b|\b(?:research|academic|educational|evaluation) "
    r"(?:use |purposes? )only\b|\bonly for (?:research|academic|educational|evaluation)\b|\buse limitation\b"
)


def license_of_text(text: str) -> str:
    """Return the license of a text, or the licenses of all texts in it; NOASSERTION if unknown.

    A permissive text with words that limit the use, such as "noncommercial", counts as unknown. GNU licenses come
    without -only or -or-later: their text does not say which of the two applies.
    """
    plain = plain_text(text)
    firsts = (
        next((name for name, phrases in family if all(phrase in plain for phrase in phrases)), NOASSERTION)
        for family in _FAMILIES
    )
    expression = combine_licenses(name for name in firsts if name != NOASSERTION)
    return NOASSERTION if is_permissive(expression) and LIMITS.search(plain) else expression


def plain_text(text: str) -> str:
    """Return the words of a text in lower case, without signs but for points in numbers and names."""
    return " ".join(re.sub(r"[^a-z0-9.]+", " ", text.lower()).replace(". ", " ").split())


NOASSERTION = "NOASSERTION"

#: Licenses that permit redistributing modified copies under other terms, as long as notices are kept.
_PERMISSIVE = frozenset(
    {
        "0BSD", "AFL-3.0", "Apache-2.0", "Artistic-2.0", "BSD-1-Clause", "BSD-2-Clause", "BSD-2-Clause-Patent",
        "BSD-3-Clause", "BSD-3-Clause-Clear", "BSL-1.0", "bzip2-1.0.6", "CC-BY-4.0", "CC0-1.0", "CNRI-Python", "HPND",
        "ISC", "libpng-2.0", "MIT", "MIT-0", "MIT-CMU", "NCSA", "PostgreSQL", "PSF-2.0", "Python-2.0", "Python-2.0.1",
        "Unlicense", "UPL-1.0", "W3C", "WTFPL", "X11", "Zlib", "ZPL-2.1",
    }
)  # fmt: skip
_PERMISSIVE_EXCEPTIONS = frozenset({None, "LLVM-exception"})
_LICENSE = re.compile(r"\b(?!(?:AND|OR)\b)([\w.+:-]+)(?: WITH ([\w.-]+))?")


def is_permissive(expression: str) -> bool:
    """Return whether modified copies may be published under the license.

    Args: expression: an SPDX expression in any spelling, or NOASSERTION.
    Returns: with AND, True if both sides permit it, with OR if one of them does; False if the license is unknown.
    """
    try:
        canonical = canonicalize_license_expression(expression)
    except InvalidLicenseExpression:
        return False
    # With True or False for each license, Python's parser takes care of precedence and parentheses.
    truth = _LICENSE.sub(lambda it: str(it[1] in _PERMISSIVE and it[2] in _PERMISSIVE_EXCEPTIONS), canonical)
    return _holds(ast.parse(truth.replace("AND", "and").replace("OR", "or"), mode="eval").body)


def _holds(node: ast.expr) -> bool:
    """Evaluate an expression of True, False, `and` and `or`."""
    if isinstance(node, ast.BoolOp):
        return (all if isinstance(node.op, ast.And) else any)(map(_holds, node.values))
    return isinstance(node, ast.Constant) and node.value is True


def combine_licenses(expressions: Iterable[str]) -> str:
    """Combine expressions with AND.

    Args: expressions: canonical SPDX expressions, or NOASSERTION.
    Returns: the distinct operands of AND, sorted; NOASSERTION if one expression is, or if there are none.
    """
    distinct = set(expressions)
    if not distinct or NOASSERTION in distinct:
        return NOASSERTION
    if len(distinct) == 1:
        return distinct.pop()
    return " AND ".join(sorted({part for expression in distinct for part in _parts(expression)}))


def _parts(expression: str) -> list[str]:
    """Return the operands of AND."""
    parts = re.split(r" AND (?![^()]*\))", expression)
    return [f"({expression})"] if any(" OR " in re.sub(r"\([^()]*\)", "", part) for part in parts) else parts


def parse_expression(text: str) -> str:
    """Return the canonical form of an SPDX expression entered by a user.

    Args: text: the value of `--license`.
    Returns: with the spelling, case and parentheses of SPDX.
    Raises: UsageError if it is invalid.
    """
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression as error:
        raise UsageError(
            f"--license {text}: not an SPDX expression; for example MIT, or 'Apache-2.0 AND MIT'"
        ) from error


#: Usual names, as `license_of_field` reduces them, also those of trove classifiers; "BSD License" names none.
_USUAL_NAMES = {
    "3 clause bsd": "BSD-3-Clause",
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "boost 1.0": "BSL-1.0",
    "bsd 2 clause": "BSD-2-Clause",
    "bsd 3 clause": "BSD-3-Clause",
    "cc by nc 4.0": "CC-BY-NC-4.0",
    "cc0 1.0 universal public domain dedication": "CC0-1.0",
    "isc": "ISC",
    "mit": "MIT",
    "mit no attribution": "MIT-0",
    "modified bsd": "BSD-3-Clause",
    "mozilla public 2.0": "MPL-2.0",
    "mpl 2.0": "MPL-2.0",
    "new bsd": "BSD-3-Clause",
    "python foundation": "PSF-2.0",
    "simplified bsd": "BSD-2-Clause",
    "unlicense": "Unlicense",
    "zlib libpng": "Zlib",
}
_GNU_FIELD = re.compile(r"([al]?gpl) ?v([23])")
_GNU = re.compile(r"GNU (?:(A)ffero |(L)esser )?General Public License v(\d)( or later)?")


def find_license(stated: str, texts: Sequence[str]) -> str:
    """Return the license in the metadata, else that of the license files, else NOASSERTION.

    Args: stated, texts: the license in the metadata or NOASSERTION, and the texts of the license files.
    Returns: an SPDX expression. Several licenses of files are joined with AND, files of unknown licenses left out.
    """
    if stated != NOASSERTION:
        return stated
    return combine_licenses({license_of_text(text) for text in texts} - {NOASSERTION})


def license_of_fields(expression: str, field: str, classifiers: Iterable[str]) -> str:
    """Return the license in the fields License-Expression, License or Classifier, in this order; else NOASSERTION.

    Args: expression, field: the first two fields of a distribution's metadata; empty if it lacks them. classifiers:
        with or without their leading `License :: OSI Approved ::`.
    Returns: an SPDX expression. Several different classifiers decide nothing: they may mean AND or OR.
    """
    for text in (expression, field):
        known = license_of_field(text)
        if known != NOASSERTION:
            return known
    named = {_license_of_classifier(line.rpartition("::")[2].strip()) for line in classifiers} - {NOASSERTION}
    if len(named) == 1:
        return named.pop()
    # Some packages have the whole text in the field.
    return license_of_text(field) if len(field) > 200 else NOASSERTION


def _license_of_classifier(name: str) -> str:
    if match := _GNU.match(name):
        return f"{match[1] or match[2] or ''}GPL-{match[3]}.0-{'or-later' if match[4] else 'only'}"
    return license_of_field(name)


def license_of_field(text: str) -> str:
    """Return the SPDX expression of a name such as "Apache 2.0" or "GPLv3"; NOASSERTION if it is not known."""
    text = text.strip()
    signs = r"\b(?:the|license|licence|version|software)\b|\([^()]*\)|[^a-z0-9.+ ]"
    plain = " ".join(re.sub(signs, " ", text.lower()).split())
    if match := _GNU_FIELD.fullmatch(plain):
        return f"{match[1].upper()}-{match[2]}.0"
    try:
        return _USUAL_NAMES.get(plain) or canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return NOASSERTION
