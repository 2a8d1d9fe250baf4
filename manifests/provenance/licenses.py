"""Determine SPDX expressions from license texts, metadata and the heads of files, and which are permissive.

Source: https://packaging.python.org/specifications/core-metadata/
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from lemur_core.files.errors import UsageError
from lemur_core.files.markdown import make_visible

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
        ("BSD-4-Clause", (_REDISTRIBUTION, "all advertising materials mentioning features or use of this software")),
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
_PERMISSIVE_EXCEPTIONS = frozenset({"", "LLVM-exception"})
_LICENSE = re.compile(r"\b(?!(?:AND|OR)\b)[\w.+:-]+(?: WITH [\w.-]+)?")


def _parse(expression: str) -> ast.expr:
    """Return an SPDX expression as Python's parser reads it: licenses as texts, joined by `and` and `or`.

    Raises: InvalidLicenseExpression.
    """
    text = _LICENSE.sub(lambda match: repr(match[0]), canonicalize_license_expression(expression))
    return ast.parse(text.replace(" AND ", " and ").replace(" OR ", " or "), mode="eval").body


def is_permissive(expression: str) -> bool:
    """Return whether modified copies may be published under the license.

    Args: expression: an SPDX expression in any spelling, or NOASSERTION.
    Returns: with AND, True if both sides permit it, with OR if one of them does; False if the license is unknown.
    """

    def holds(node: ast.expr) -> bool:
        if isinstance(node, ast.BoolOp):
            return (all if isinstance(node.op, ast.And) else any)(map(holds, node.values))
        name, _, exception = ast.literal_eval(node).partition(" WITH ")
        return name in _PERMISSIVE and exception in _PERMISSIVE_EXCEPTIONS

    try:
        return holds(_parse(expression))
    except InvalidLicenseExpression:
        return False


def combine_licenses(expressions: Iterable[str]) -> str:
    """Combine expressions with AND.

    Args: expressions: SPDX expressions, or NOASSERTION.
    Returns: the distinct operands of AND, sorted, alternatives in parentheses; NOASSERTION if one expression is, or if
        there are none.
    """

    def split(node: ast.expr) -> list[str]:
        if not isinstance(node, ast.BoolOp):
            return [ast.literal_eval(node)]
        parts = map(split, node.values)
        if isinstance(node.op, ast.And):
            return [name for part in parts for name in part]
        return [f"({' OR '.join(map(' AND '.join, parts))})"]

    distinct = set(expressions)
    if not distinct or NOASSERTION in distinct:
        return NOASSERTION
    if len(distinct) == 1:
        return distinct.pop()
    operands: set[str] = set()
    for expression in distinct:
        try:
            operands.update(split(_parse(expression)))
        except InvalidLicenseExpression:
            operands.add(expression)
    return " AND ".join(sorted(operands))


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
    Returns: an SPDX expression. Several licenses of files are joined with AND. Files of unknown licenses are left out,
        unless one restricts the use: then all is unknown.
    """
    if stated != NOASSERTION:
        return stated
    found = {text: license_of_text(text) for text in texts}
    return combine_licenses(name for text, name in found.items() if name != NOASSERTION or _restricts(plain_text(text)))


def license_of_fields(expression: str, field: str, classifiers: Iterable[str]) -> str:
    """Return the license in the fields License-Expression, License or Classifier, in this order; else NOASSERTION.

    Args: expression, field: the first two fields of a distribution's metadata; empty if it lacks them. classifiers:
        with or without their leading `License :: OSI Approved ::`.
    Returns: an SPDX expression. Several different classifiers decide nothing: they may mean AND or OR.
    """
    for text in (expression, field):
        if (known := license_of_field(text)) != NOASSERTION:
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


# What a file states itself: an SPDX line, or the wording of its head, which is the comments, the docstrings and the
# values of names such as `__license__` before the first definition. A file that says nothing there is under the license
# of its source. One that names a license is under that, in whatever words. One that restricts its use in words that are
# no known license is under an unknown one. "All rights reserved" without a grant, and "see LICENSE", say that the
# license is that of the source, if the file still lies there. In the docstring of a class only `License: X` and "under
# the X license" count, if X is known: its other words are about the class.


@dataclass(frozen=True, slots=True)
class HeadLicense:
    """The statement of a file on its license.

    Attributes:
        licenses: SPDX expressions, all of which apply; NOASSERTION for what is not known to permit anything.
        refers: it says that there is a license elsewhere, and names none.
    """

    licenses: tuple[str, ...] = ()
    refers: bool = False


#: Comments, and literals that are statements or the value of a name, up to the first definition.
_HEAD = re.compile(
    r"""\#(?P<comment>[^\n]*)
    |^(?:(?P<name>\w+)[ ]?=[ ]?\(?\s{0,20})?[rRuU]?(?P<mark>\"{3}|'{3}|["'])(?P<text>.*?)(?<!\\)(?P=mark)
    |^(?P<end>(?:class|def|async)\b|@)""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_CLASS_DOCSTRING = re.compile(r"^class\b[^\"'#:]*:\s*[rRuU]?(?P<mark>\"{3}|'{3})(?P<text>.*?)(?P=mark)", re.M | re.S)
_NAMES = re.compile(r"(?i)_*(?:licen[cs]e|copyright|author)\w*")
#: A separate line anywhere in a file, after the comment marker of any language.
_SPDX_LINE = re.compile(
    r"""^[ \t]*(?:[rRuU]?(?:\"{3}|'{3}))?[^\w\n"'=(\[{\\]*(SPDX-License-Identifier[^\n]*)""",
    re.MULTILINE | re.IGNORECASE,
)
_SPDX = re.compile(r"SPDX-License-Identifier[ \t]*[:=]?[ \t]*([^\n]*)", re.IGNORECASE)
_AFTER_SPDX = re.compile(r"\*/.*|-->.*|[\"'`;,].*|[ \t]{2,}.*|[^\w+)]+$")

#: Licenses that are not permissive, as `plain_text` writes them; what is matched is taken out before the next line.
_NOT_PERMISSIVE: tuple[tuple[str, str], ...] = (
    (r"\bagpl\w*|affero general public licen[cs]e", "AGPL-3.0"),
    (r"\blgpl\w*|(?:lesser|library) (?:gnu )?general public licen[cs]e", "LGPL-3.0"),
    (r"\bgpl(?:v?[23]\w*)?\b|gnu (?:general )?public licen[cs]e|gnu gpl|general public licen[cs]e", "GPL-3.0"),
    (r"mozilla public licen[cs]e|\bmpl ?v?[12]", "MPL-2.0"),
    (r"\beupl\b|european union public licen[cs]e", "EUPL-1.2"),
    (r"\bsspl\b|server side public licen[cs]e", "SSPL-1.0"),
    (r"\bbusl\b|business source licen[cs]e", "BUSL-1.1"),
    (r"eclipse public licen[cs]e", "EPL-2.0"),
    (r"\bcddl\b|common development and distribution licen[cs]e", "CDDL-1.0"),
    (r"elastic licen[cs]e", "Elastic-2.0"),
    (r"\bcc by nc sa\b|licenses by nc sa\b|attribution non ?commercial share ?alike", "CC-BY-NC-SA-4.0"),
    (r"\bcc by nc nd\b|licenses by nc nd\b|attribution non ?commercial no ?deriv\w*", "CC-BY-NC-ND-4.0"),
    (r"\bcc by nc\b|licenses by nc\b|attribution non ?commercial", "CC-BY-NC-4.0"),
    (r"\bcc by nd\b|licenses by nd\b|attribution no ?deriv\w*", "CC-BY-ND-4.0"),
    (r"\bcc by sa\b|licenses by sa\b|attribution share ?alike", "CC-BY-SA-4.0"),
)
#: Licenses of which every version is permissive, by a loose name; the one that asks most counts.
_LOOSE_NAMES = (
    (r"\bapache\b", "Apache-2.0"),
    (r"\b(?:bsd 2|2 clause|simplified bsd|freebsd)\b", "BSD-2-Clause"),
    (r"\bbsd\b", "BSD-3-Clause"),
    (r"\b(?:mit|expat)\b", "MIT"),
    (r"\bisc\b", "ISC"),
    (r"\bcc0\b", "CC0-1.0"),
    (r"\bcc by\b|creative commons attribution", "CC-BY-4.0"),
    (r"\bunlicense\b", "Unlicense"),
)
_ELSEWHERE = frozenset({"the", "this", "that", "same", "the same", "a", "following", "the following", "above"})
_NEGATED = re.compile(r"\b(?:not|no|non|without|instead of|unlike|avoid\w*)(?: \w+){0,3} $")
_FORBIDDEN = re.compile(
    r"\bstrictly (?:prohibited|forbidden)"
    r"|\bunauthori[sz]ed (?:copying|use|reproduction|distribution|access|disclosure)"
    r"|\b(?:may|must|shall|can) not be (?:copied|used|reproduced|(?:re)?distributed|disclosed|shared|published|sold)"
    r"(?! to endorse| in advertising)"
    r"|\bdo not (?:copy|distribute|redistribute|share|publish)\b"
    r"|\bnot for (?:re)?distribution|\binternal use only|\btrade secrets?\b|\bconfidential\b(?! (?:computing|learning))"
    r"|\bproprietary\b(?! (?:data|model|training|format|corpus|hardware))"
    r"|\bno licen[cs]e (?:is )?granted"
    r"|\bwithout (?:the )?(?:(?:prior|express|explicit|written) ){1,3}(?:permission|consent)"
)
_RESERVED = re.compile(r"\ball rights? (?:are )?reserved\b")
_REFERS = re.compile(
    r"\b(?:see|read|refer to|found in|in|at|file) (?:the )?(?:\w+ ){0,3}(?:licen[cs]e|copying)\b"
    r"|licen[cs]e (?:found|file)\b"
)


def _restricts(plain: str) -> bool:
    """Return whether words, as `plain_text` writes them, forbid or limit the use, or name a license that does."""
    named = (pattern for pattern, _ in _NOT_PERMISSIVE)
    return any(re.search(pattern, plain) for pattern in (_FORBIDDEN.pattern, LIMITS.pattern, *named))


#: "License: X" in a line, and "released under the X license" in a sentence.
_FIELD = re.compile(
    r"(?im)^[^\w\n]*(?:software |code )?licen[cs]e[sd]?(?: (?:name|type|identifier))?[ \t]*[:=][ \t]*(\S.{0,80})$"
)
_UNDER = re.compile(
    r"\b(?:(?:is|are|licen[cs]ed|released|distributed|available|published|provided|shared|open sourced)"
    r"(?: \w+){0,4}? under"
    r"|(?:covered|governed) by)(?: the| a| an)?(?: terms(?: and conditions)? of(?: the)?)?"
    r" ((?:[\w.]+ ){1,7}?)licen[cs]e\b"
)
#: The rest of a sentence, from words on trained weights or data on.
_OF_WEIGHTS = re.compile(
    r"(?P<before>.{0,40}?)\b(?i:weights?|checkpoints?|datasets?)\b(?:(?!\.\s|\n\s*\n|\n\s*[A-Z]).){0,120}?"
    r"\b(?i:are|is|under|have)\b(?:(?!\.\s|\n\s*\n|\n\s*[A-Z]).)*",
    re.DOTALL,
)
_CODE = re.compile(r"(?i)\b(?:code|software|program|implementation|network|source|files?)\b")


def read_head(code: str) -> HeadLicense:
    """Return what a file states about its license.

    Args: code: the text of the file; it need not be Python that can be parsed.
    Source: https://spdx.github.io/spdx-spec/v2.3/using-SPDX-short-identifiers-in-source-files/
    """
    code = code.replace("\r\n", "\n").replace("\r", "\n")
    lines = _leave_out_weights("\n".join(_head_texts(code)))
    plain = plain_text(lines)
    # Few files have such a line, and the pattern costs more than all the rest.
    anywhere = _SPDX_LINE.findall(code) if "spdx-" in code.lower() or not code.isascii() else ()
    stated = dict.fromkeys(_read_spdx(line) for line in (*anywhere, *_SPDX.findall(lines)))
    if not stated:
        stated = dict.fromkeys(_find_named_licenses(lines, plain))
    for match in _CLASS_DOCSTRING.finditer(code) if "icen" in code else ():
        explicit = _find_explicit_licenses(match["text"], plain_text(match["text"]))
        stated |= dict.fromkeys(license_ for license_ in explicit if license_ != NOASSERTION)
    if all(map(is_permissive, stated)) and (_FORBIDDEN.search(plain) or LIMITS.search(plain)):
        stated[NOASSERTION] = None
    refers = not stated and (_RESERVED.search(plain) or _REFERS.search(plain)) is not None
    return HeadLicense(tuple(stated), refers)


def license_of_code(code: str, source: str, stated: str | None = None, *, in_source: bool = False) -> str | None:
    """Return the license of a code that states one itself, combined with that of its source; None if it states none.

    Args:
        code: the text of the file.
        source: the license of all codes of the source.
        stated: the user's license for codes that state none; it does not apply to a code that does.
        in_source: the file lies where it was published, with the license of the source: "see LICENSE" means that one.
    Returns: the expressions joined as by `combine_licenses`; a source of unknown license adds nothing.
    """
    head = read_head(code)
    own = head.licenses or ((NOASSERTION,) if head.refers and not in_source and stated is None else ())
    return combine_licenses({*own, *({source} - {stated, NOASSERTION})}) if own else None


#: What states a copyright: a sign, a year or a holder. The texts of licenses name holders, notices and laws.
_TERMS = "holders?|owners?|ownership|notices?|laws?|licen[cs]\\w+|acts?|grants?|and|or|in|is|information|infringement"
_COPYRIGHT = re.compile(
    r"(?i:copyright(?:ed|s|text)?[\s:,-]*(?:by\s|©|\(c\)|(?:19|20)\d\d))"
    rf"|(?i:copyright(?:text)?):?\s+(?!(?i:{_TERMS})\b)(?=[^\W\da-z_])"
    r"|©|(?P<item>\([cC]\)\s*(?!(?i:copyright))(?:(?=[^\W\da-z_])|(?:19|20)\d\d))"
)
#: The beginning of a header's line with a copyright.
NOTICE = "# Notice:  "


def notice_lines(code: str) -> tuple[str, ...]:
    """Return the lines in the head of a file that state a copyright, each once, as the header of a copy shows them.

    Args: code: the text of the file, with uniform line ends; it need not be Python that can be parsed.
    Returns: comments, each on one line of at most some 200 visible characters.
    """
    text = _SPDX.sub("", "\n".join(_head_texts(code)))  # one file's expression would count for the whole copy
    listed = "(b)" in text.lower()  # then `(c)` begins an item
    lines = (" ".join(line.split()).strip(" #*/|;=-").removeprefix("Notice: ") for line in text.split("\n"))
    stated = (line for line in lines if (match := _COPYRIGHT.search(line)) and not (listed and match["item"]))
    return tuple(dict.fromkeys(f"{NOTICE}{make_visible(line, 200)}" for line in stated))


def _leave_out_weights(text: str) -> str:
    """Return a text without statements about trained weights and data, which may have another license than the code."""

    def rest(match: re.Match[str]) -> str:
        sentence = match["before"].rpartition(". ")[2]
        return match[0] if _CODE.search(sentence) else match["before"]

    return _OF_WEIGHTS.sub(rest, text)


def _head_texts(code: str) -> Iterator[str]:
    for match in _HEAD.finditer(code):
        if match["end"]:
            return
        if match["comment"] is not None:
            yield match["comment"]
        elif match["name"] is None:
            yield match["text"]
        elif _NAMES.fullmatch(match["name"]):
            yield f"{match['name'].strip('_')}: {match['text']}"


def _read_spdx(line: str) -> str:
    """Return the canonical expression of the rest of an SPDX line; NOASSERTION if it is none."""
    text = _AFTER_SPDX.sub("", _SPDX.sub(r"\1", line).strip())
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return license_of_field(text)


def _find_named_licenses(lines: str, plain: str) -> Iterator[str]:
    """Yield the licenses that the words of a head name."""
    known = license_of_text(plain)
    if known != NOASSERTION:
        yield known
    rest = plain
    for pattern, name in _NOT_PERMISSIVE:
        for match in re.finditer(pattern, rest):
            if not _NEGATED.search(rest, max(0, match.start() - 60), match.start()):
                yield _with_version(name, rest[match.start() : match.end() + 100])
        rest = re.sub(pattern, "", rest)
    yield from _find_explicit_licenses(lines, plain)


def _find_explicit_licenses(lines: str, plain: str) -> Iterator[str]:
    for text in [*_FIELD.findall(lines), *_UNDER.findall(plain)]:
        name = plain_text(text)
        if name not in _ELSEWHERE and ((license_ := _license_of_name(name)) != NOASSERTION or not _REFERS.search(name)):
            yield license_


def _license_of_name(name: str) -> str:
    """Return the license with a name, as `plain_text` writes it; NOASSERTION if it is none that is known."""
    known = license_of_field(name)
    if known != NOASSERTION:
        return known
    name = f"{name} license"
    for pattern, license_ in (*_NOT_PERMISSIVE, *_LOOSE_NAMES):
        if re.search(pattern, name):
            return _with_version(license_, name)
    return NOASSERTION


def _with_version(license_: str, text: str) -> str:
    """Return a GNU license with the version that a text says; the latest if it says none."""
    version = re.search(r"(?<![\d.])([23](?:\.[01])?)\b", text.replace("v", " "))
    if version is None or "GPL" not in license_:
        return license_
    return f"{license_.partition('-')[0]}-{version[1]}{'' if '.' in version[1] else '.0'}"
