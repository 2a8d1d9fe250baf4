"""The lexical view of a network: its model region as a stream of tokens, and that as a set of hashed shingles.

The definitions are those that nn-dup published (names, numbers and strings abstracted, ten tokens a shingle), mended
where they break on valid code: the scanner reads any layout (bare continuation lines, tabs), and a model class is
recognised by what it is, not by a base spelled `Module`. docs/similarity.md lists the differences.

Source: arXiv:2512.04329, section 3.2; https://github.com/ABrain-One/nn-dup
"""

import hashlib
import re
import sys
from collections.abc import Sequence
from itertools import accumulate
from keyword import iskeyword
from typing import Literal

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.features.outline import Outline, Part

#: Tokens a shingle, as published.
SHINGLE_TOKENS = 10

#: How much of the code a token keeps: `abstract` is the published definition; `literal` keeps every name, number and
#: string, and numbers repeated shingles, so that another activation, width or depth is another network.
Detail = Literal["abstract", "literal"]

_STRING = (
    r"(?:[bB][rR]?|[fF][rR]?|[rR][bBfF]?|[uU])?"
    r"(?:'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''|\"\"\"[^\"\\]*(?:(?:\\.|\"(?!\"\"))[^\"\\]*)*\"\"\""
    r"|'[^\n'\\]*(?:\\.[^\n'\\]*)*'|\"[^\n\"\\]*(?:\\.[^\n\"\\]*)*\")"
)
_NUMBER = (
    r"0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO](?:_?[0-7])+"
    r"|(?:[0-9](?:_?[0-9])*\.(?:[0-9](?:_?[0-9])*)?|\.[0-9](?:_?[0-9])*|[0-9](?:_?[0-9])*)"
    r"(?:[eE][-+]?[0-9](?:_?[0-9])*)?[jJ]?"
)
_OPERATOR = r"\*\*=?|//=?|>>=?|<<=?|\.\.\.|->|:=|[-+*/%&|^@=<>!]=|[-+*/%&|^@=<>!~()\[\]{},:;.]"
_TOKEN = re.compile(rf"{_STRING}|\#[^\n]*|{_NUMBER}|\w+|{_OPERATOR}", re.DOTALL)
_STRING_START = re.compile(_STRING, re.DOTALL)

_KEPT_PREFIXES = (
    *("Conv", "Batch", "Layer", "Group", "Instance", "Max", "Avg", "Adaptive", "Dropout", "Linear", "Flatten"),
    *("LSTM", "GRU", "Multihead", "Transformer", "Upsample", "SE", "Squeeze", "Sequential", "Module", "Fractal"),
    *("ResNet", "Dense", "VGG"),
)


def is_model_class(outline: Outline) -> list[bool]:
    """For each class of the outline, whether it is a network or a part of one.

    It is when it derives from `Module`, from a class of the same file that is one, or when it defines `forward`
    itself (which catches bases such as `nn.Sequential`, `ResNet` or a `BasicBlock` imported from elsewhere).
    """
    model = [item.has_forward or "Module" in item.bases for item in outline.classes]
    by_name = {item.name: place for place, item in enumerate(outline.classes)}
    derived: dict[int, list[int]] = {}
    for place, item in enumerate(outline.classes):
        for base in item.bases:
            if base in by_name:
                derived.setdefault(by_name[base], []).append(place)
    found = [place for place, chosen in enumerate(model) if chosen]
    while found:
        for place in derived.get(found.pop(), ()):
            if not model[place]:
                model[place] = True
                found.append(place)
    return model


def region_lines(outline: Outline) -> list[tuple[int, int]]:
    """Line spans (1-based, inclusive, merged) of the model classes and of the functions that they call by name.

    Empty when there is no model class: the whole source is the region then.
    """
    model = is_model_class(outline)
    spans = [(item.first, item.last) for item, chosen in zip(outline.classes, model, strict=True) if chosen]
    called: set[str] = set()
    for owners, names in outline.called.items():
        if any(model[owner] for owner in owners):
            called |= names
    spans += [(first, last) for name, first, last in outline.functions if name in called]
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def region_tokens(code: str, outline: Outline) -> tuple[list[str], frozenset[str]]:
    """Tokens of the model region as written (comments and docstrings dropped), and the names declared in it."""
    spans = region_lines(outline) or [(1, code.count("\n") + code.count("\r") + 1)]
    tokens = span_tokens(code, outline, spans)
    declared = {item.name for item in outline.classes if any(first <= item.first <= last for first, last in spans)}
    declared |= {name for name, line, _ in outline.functions if any(first <= line <= last for first, last in spans)}
    return tokens, frozenset(declared)


def span_tokens(code: str, outline: Outline, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Tokens of some lines as written, comments and docstrings dropped.

    Args: spans: first and last line of each stretch, from 1; beyond the last line nothing is read.
    """
    code = code.replace("\r\n", "\n").replace("\r", "\n")  # as the parser counts lines
    starts = _line_starts(code)
    spans = [(first, min(last, len(starts) - 1)) for first, last in spans]
    docstrings = _docstring_spans(code, starts, outline.docstrings)
    tokens: list[str] = []
    plain = True
    for first, last in spans:
        at = starts[first - 1]
        for cut in outline.parts:
            if first <= cut.line and cut.part is not None and cut.line + cut.part.last <= last:
                between = _without(code, at, cut.start, docstrings)
                own = _part_tokens(cut.text, cut.part)
                plain = plain and not _has_triple(between) and own is not None
                tokens += _lex(between)
                tokens += own or ()
                at = cut.stop
        rest = _without(code, at, starts[last], docstrings)
        plain = plain and not _has_triple(rest)
        tokens += _lex(rest)
    if not plain and outline.parts:  # quotes nested in an f-string could be read as the start of a text over many lines
        tokens = _lex("\n".join(_without(code, starts[first - 1], starts[last], docstrings) for first, last in spans))
    return tokens


def _part_tokens(text: str, part: Part) -> list[str] | None:
    """The tokens of a part; None where they depend on what stands around it."""
    if part.tokens is None and part.alone:
        starts = _line_starts(text)
        docstrings = [(line + 1, column) for line, column in part.outline.docstrings]
        cut = _without(text, 0, len(text), _docstring_spans(text, starts, docstrings))
        part.alone = not _has_triple(cut)
        if part.alone:
            part.tokens = [sys.intern(token) for token in _lex(cut)]
    return part.tokens


def _has_triple(text: str) -> bool:
    return '"""' in text or "'''" in text


def _lex(text: str) -> list[str]:
    tokens = _TOKEN.findall(text)
    return [token for token in tokens if token[0] != "#"] if "#" in text else tokens


def _line_starts(code: str) -> list[int]:
    """Where each line begins, and one more."""
    return list(accumulate((len(line) + 1 for line in code.split("\n")), initial=0))


def shingle_hashes(tokens: list[str], declared: frozenset[str], detail: Detail) -> npt.NDArray[np.uint64]:
    """The set of shingles as sorted distinct 64-bit hashes, shape (n,); empty only when there are no tokens.

    Two different shingles share a hash with a chance of 2**-64.
    """
    if detail == "abstract":
        table = _ABSTRACT
        own = {name: _hash(name) for name in declared}
        ids = [own.get(token) or table[token] for token in tokens]
    else:
        ids = [_LITERAL[token] for token in tokens]
    if not ids:
        return np.empty(0, np.uint64)
    values = np.array(ids, np.uint64)
    width = min(SHINGLE_TOKENS, len(values))
    count = len(values) - width + 1
    mixed = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):
        for place in range(width):
            mixed = mixed * _MULTIPLIER + values[place : place + count]
        mixed = _finish(mixed + np.uint64(width))
        unique, counts = np.unique(mixed, return_counts=True)
        if detail == "literal" and counts.max() > 1:
            extra = [_finish(unique[counts > nth] + np.uint64(nth)) for nth in range(1, int(counts.max()))]
            unique = np.unique(np.concatenate([unique, *extra]))
    return unique


def literal_digest(tokens: list[str]) -> bytes:
    """16 bytes that two token streams share only when they are the same, names and numbers included."""
    return hashlib.blake2b("\x1f".join(tokens).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _docstring_spans(code: str, starts: list[int], docstrings: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Character spans of the strings at these lines (from 1) and UTF-8 columns, in order."""
    spans = []
    for line, column in sorted(docstrings):
        start = starts[line - 1]
        text = code[start : starts[line]]
        match = _STRING_START.match(code, start + len(text.encode("utf-8", "surrogatepass")[:column].decode()))
        if match is not None:
            spans.append(match.span())
    return spans


def _without(code: str, start: int, end: int, cuts: list[tuple[int, int]]) -> str:
    pieces = []
    for first, last in cuts:
        if start <= first and last <= end:
            pieces.append(code[start:first])
            start = last
    return "".join(pieces) + code[start:end]


def _hash(token: str) -> int:
    return int.from_bytes(hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") | 1


class _TokenTable(dict[str, int]):
    """Token to 64-bit value, worked out once per distinct token and process."""

    def __init__(self, detail: Detail) -> None:
        super().__init__()
        self._detail = detail

    def __missing__(self, token: str) -> int:
        value = _hash(token if self._detail == "literal" else _abstract(token))
        if len(self) < 200_000:
            self[token] = value
        return value


def _abstract(token: str) -> str:
    """The published abstraction of one token: names that carry architecture stay, the rest becomes a placeholder."""
    first = token[0]
    if first in "'\"" or (token[-1] in "'\"" and first.isalpha()):
        return "STR"
    if first.isdigit() or (first == "." and token[1:2].isdigit()):
        return "NUM"
    if first.isalpha() or first == "_":
        if iskeyword(token) or token.startswith(_KEPT_PREFIXES):
            return token
        return token if any(char.isupper() for char in token[1:]) else "ID"
    return token


def _finish(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser: every input bit reaches every output bit. Source: https://prng.di.unimi.it/splitmix64.c"""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_ABSTRACT = _TokenTable("abstract")
_LITERAL = _TokenTable("literal")
