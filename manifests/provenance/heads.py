"""Read what a file states about its license: an SPDX line, or the wording of its head.

The head is the comments, the docstrings and the values of names such as `__license__` before the first definition. A
file that says nothing there is under the license of its source. One that names a license is under that, in whatever
words. One that restricts its use in words that are no known license is under an unknown one. "All rights reserved"
without a grant, and "see LICENSE", say that the license is that of the source, if the file still lies there. In the
docstring of a class only `License: X` and "under the X license" count, if X is known: its other words are about
the class.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from manifests.provenance.licenses import (
    LIMITS,
    NOASSERTION,
    combine_licenses,
    is_permissive,
    license_of_field,
    license_of_text,
    plain_text,
)


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
_PERMISSIVE = (
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
    for pattern, license_ in (*_NOT_PERMISSIVE, *_PERMISSIVE):
        if re.search(pattern, name):
            return _with_version(license_, name)
    return NOASSERTION


def _with_version(license_: str, text: str) -> str:
    """Return a GNU license with the version that a text says; the latest if it says none."""
    version = re.search(r"(?<![\d.])([23](?:\.[01])?)\b", text.replace("v", " "))
    if version is None or "GPL" not in license_:
        return license_
    return f"{license_.partition('-')[0]}-{version[1]}{'' if '.' in version[1] else '.0'}"
