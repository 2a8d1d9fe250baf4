"""SPDX licence expressions: which of them let code be passed on, several at once, and what a file states of itself.

Source: https://spdx.org/licenses/
"""

import re
from collections.abc import Iterable

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from lemur_core.files.errors import UsageError

NOASSERTION = "NOASSERTION"

#: Licences that let anyone pass on changed copies under terms of their own, as long as notices stay.
_PERMISSIVE = frozenset(
    {
        "0BSD",
        "AFL-3.0",
        "Apache-2.0",
        "Artistic-2.0",
        "BSD-1-Clause",
        "BSD-2-Clause",
        "BSD-2-Clause-Patent",
        "BSD-3-Clause",
        "BSD-3-Clause-Clear",
        "BSL-1.0",
        "bzip2-1.0.6",
        "CC-BY-4.0",
        "CC0-1.0",
        "CNRI-Python",
        "HPND",
        "ISC",
        "libpng-2.0",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "NCSA",
        "PostgreSQL",
        "PSF-2.0",
        "Python-2.0",
        "Python-2.0.1",
        "Unlicense",
        "UPL-1.0",
        "W3C",
        "WTFPL",
        "X11",
        "Zlib",
        "ZPL-2.1",
    }
)
_PERMISSIVE_EXCEPTIONS = frozenset({"LLVM-exception"})

_IDENTIFIER = re.compile(r"^[ \t]*#[ \t]*SPDX-License-Identifier:[ \t]*(\S.*)$", re.MULTILINE)


def is_permissive(expression: str) -> bool:
    """Whether changed copies may be published under the licence; never for what is unknown.

    With AND both sides must allow it, with OR one of them suffices.
    """
    try:
        tokens = re.findall(r"[()]|[^\s()]+", canonicalize_license_expression(expression))
    except InvalidLicenseExpression:
        return False
    return _either(tokens)


def _either(tokens: list[str]) -> bool:
    allowed = _both(tokens)
    while tokens and tokens[0] == "OR":
        tokens.pop(0)
        allowed = _both(tokens) or allowed  # the right side is read in any case
    return allowed


def _both(tokens: list[str]) -> bool:
    allowed = _one(tokens)
    while tokens and tokens[0] == "AND":
        tokens.pop(0)
        allowed = _one(tokens) and allowed
    return allowed


def _one(tokens: list[str]) -> bool:
    item = tokens.pop(0)
    if item == "(":
        allowed = _either(tokens)
        tokens.pop(0)
    else:
        allowed = item in _PERMISSIVE
    if tokens and tokens[0] == "WITH":
        allowed = allowed and tokens[1] in _PERMISSIVE_EXCEPTIONS
        del tokens[:2]
    return allowed


def all_of(expressions: Iterable[str]) -> str:
    """The expression that holds where all of these hold at once; NOASSERTION if one of them is, or there is none."""
    found = set(expressions)
    if not found or NOASSERTION in found:
        return NOASSERTION
    if len(found) == 1:
        return found.pop()
    parts = {part for one in found for part in ([f"({one})"] if " OR " in one else one.split(" AND "))}
    return " AND ".join(sorted(parts))


def stated_expression(text: str) -> str:
    """An SPDX expression as a user writes it, in canonical form.

    Raises: UsageError if it is none.
    """
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression as error:
        raise UsageError(
            f"--license {text}: not an SPDX expression; for example MIT, or 'Apache-2.0 AND MIT'"
        ) from error


def licenses_of_code(code: str) -> list[str]:
    """The licences that a file's own `SPDX-License-Identifier` comments state, in their order.

    Source: https://spdx.github.io/spdx-spec/v2.3/using-SPDX-short-identifiers-in-source-files/
    """
    return [found.strip() for found in _IDENTIFIER.findall(code)]
