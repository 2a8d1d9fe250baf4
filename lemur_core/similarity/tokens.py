"""The lexical view of a network: its model region as a stream of tokens, and as a set of hashed shingles.

The definitions are those published with nn-dup (names, numbers and strings abstracted, ten tokens per shingle), fixed
where they fail on valid code: the scanner reads any layout (bare continuation lines, tabs), and a model class is
recognized by its behavior, not by a base spelled `Module`. docs/similarity.md lists the differences.

To find the origin of a class, each class of a code is a set of shingles, too: the lexical view of its own lines, with
one placeholder for all names except attributes (`nn.Conv2d`). The names of the class and of the classes that it uses do
not matter, nor whether those are imported or defined in the same file. The training functions of LEMUR's contract are
left out.

Prose, and code as prose, has simpler tokens and shingles (`split_tokens`, `shingles`).

Source: arXiv:2512.04329, section 3.2; https://github.com/ABrain-One/nn-dup
"""

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from keyword import iskeyword
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.outline import CONTRACT_FUNCTIONS, ClassOutline, Outline, outline_code

#: Tokens per shingle, as published.
SHINGLE_TOKENS = 10

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
#: White space is skipped inside, and what occurs most is tried first, which halves the time and changes no token.
_TOKEN = re.compile(
    rf"\s*+([^\W\d]\w*+(?!['\"])|[()\[\]{{}},;]|\.(?![.\d])|=(?!=)|:(?!=)"
    rf"|{_NUMBER}|{_STRING}|\#[^\n]*|\w+|{_OPERATOR})",
    re.DOTALL,
)
_STRING_START = re.compile(_STRING, re.DOTALL)

_KEPT_PREFIXES = (
    *("Conv", "Batch", "Layer", "Group", "Instance", "Max", "Avg", "Adaptive", "Dropout", "Linear", "Flatten"),
    *("LSTM", "GRU", "Multihead", "Transformer", "Upsample", "SE", "Squeeze", "Sequential", "Module", "Fractal"),
    *("ResNet", "Dense", "VGG"),
)


def is_model_class(outline: Outline) -> list[bool]:
    """Return, for each class of the outline, whether it is a network or a part of one.

    It is if it derives from `Module`, derives from such a class of the same file, or defines `forward` itself (which
    catches bases such as `nn.Sequential`, `ResNet` or a `BasicBlock` imported from elsewhere).
    """
    model = [item.has_forward or "Module" in item.bases for item in outline.classes]
    by_name = {item.name: index for index, item in enumerate(outline.classes)}
    derived: dict[int, list[int]] = {}
    for index, item in enumerate(outline.classes):
        for base in item.bases:
            if base in by_name:
                derived.setdefault(by_name[base], []).append(index)
    waiting = [index for index, chosen in enumerate(model) if chosen]
    while waiting:
        for index in derived.get(waiting.pop(), ()):
            if not model[index]:
                model[index] = True
                waiting.append(index)
    return model


def region_lines(outline: Outline) -> list[tuple[int, int]]:
    """Return line spans (1-based, inclusive, merged) of the model classes and of the functions that they call by name.

    Returns: no span if there is no model class; the region is then the whole source.
    """
    model = is_model_class(outline)
    spans = [(item.first, item.last) for item, chosen in zip(outline.classes, model, strict=True) if chosen]
    called: set[str] = set()
    for owners, names in outline.called.items():
        if any(model[owner] for owner in owners):
            called |= names
    spans += [(first, last) for name, first, last in outline.functions if name in called]
    return merge_lines(spans)


def merge_lines(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans of lines with those merged that overlap or adjoin.

    Args: spans: first and last line of each, both inclusive.
    Returns: disjoint spans, in order.
    """
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def region_tokens(code: str, outline: Outline) -> tuple[list[str], frozenset[str]]:
    """Return the tokens of the model region as written (without comments and docstrings), and the names it declares."""
    spans = region_lines(outline) or [(1, code.count("\n") + code.count("\r") + 1)]
    tokens = span_tokens(code, outline, spans)
    declared = {item.name for item in outline.classes if any(first <= item.first <= last for first, last in spans)}
    declared |= {name for name, line, _ in outline.functions if any(first <= line <= last for first, last in spans)}
    return tokens, frozenset(declared)


def span_tokens(code: str, outline: Outline, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Return the tokens of some lines as written, without comments and docstrings.

    Args: spans: first and last line of each stretch, from 1; lines beyond the last are ignored.
    """
    code = code.replace("\r\n", "\n").replace("\r", "\n")  # as the parser counts lines
    starts = list(accumulate((len(line) + 1 for line in code.split("\n")), initial=0))  # of the lines, and the end
    spans = [(first, min(last, len(starts) - 1)) for first, last in spans]
    docstrings = _docstring_spans(code, starts, outline.docstrings)
    text = "\n".join(_cut_out(code, starts[first - 1], starts[last], docstrings) for first, last in spans)
    tokens = _TOKEN.findall(text)
    return [token for token in tokens if token[0] != "#"] if "#" in text else tokens


def shingle_hashes(tokens: list[str], declared: frozenset[str]) -> npt.NDArray[np.uint64]:
    """Return the set of shingles as sorted distinct 64-bit hashes, shape (n,); empty only if there are no tokens.

    Two different shingles share a hash with a chance of 2**-64.
    """
    if not tokens:
        return np.empty(0, np.uint64)
    own = {name: _hash(name) for name in declared}
    values = np.array([own.get(token) or _abstract_hash(token) for token in tokens], np.uint64)
    width = min(SHINGLE_TOKENS, len(values))
    count = len(values) - width + 1
    mixed = np.zeros(count, np.uint64)
    # The hashes wrap around at 64 bits on purpose.
    with np.errstate(over="ignore"):
        for offset in range(width):
            mixed = mixed * _MULTIPLIER + values[offset : offset + count]
        return np.unique(_finish(mixed + np.uint64(width)))


def literal_digest(tokens: list[str]) -> bytes:
    """Return 16 bytes that are equal only for equal token streams, names and numbers included."""
    return hashlib.blake2b("\x1f".join(tokens).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _docstring_spans(code: str, starts: list[int], docstrings: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the character spans of the strings at these lines (from 1) and UTF-8 columns, in order."""
    spans = []
    for line, column in sorted(docstrings):
        start = starts[line - 1]
        text = code[start : starts[line]]
        # The parser counts columns in UTF-8 bytes.
        match = _STRING_START.match(code, start + len(text.encode("utf-8", "surrogatepass")[:column].decode()))
        if match is not None:
            spans.append(match.span())
    return spans


def _cut_out(code: str, start: int, end: int, cuts: list[tuple[int, int]]) -> str:
    pieces = []
    for first, last in cuts:
        if start <= first and last <= end:
            pieces.append(code[start:first])
            start = last
    return "".join(pieces) + code[start:end]


def _hash(token: str) -> int:
    return int.from_bytes(hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") | 1


@lru_cache(maxsize=200_000)
def _abstract_hash(token: str) -> int:
    return _hash(_abstract(token))


def _abstract(token: str) -> str:
    """Return the published abstraction of one token, which keeps names that carry architecture and replaces others."""
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
    """SplitMix64's finalizer: every input bit affects every output bit. Source: https://prng.di.unimi.it/splitmix64.c"""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


# -- classes --------------------------------------------

#: Placeholder of the names that the lexical view abstracts.
_ANY = "_"


class ClassText(NamedTuple):
    """A class of a code, and its shingles: sorted distinct hashes."""

    name: str
    shingles: npt.NDArray[np.uint64]


def class_texts(code: str, name: str | None = None) -> list[ClassText]:
    """Return the network classes of a code in order.

    Args: name: return only the class with this name (of several, the largest), whether it is a network or not.
    Returns: one item per class; none if the code is not valid Python.
    """
    outline = outline_code(code)
    if isinstance(outline, str):
        return []
    if name is None:
        chosen = [item for item, model in zip(outline.classes, is_model_class(outline), strict=True) if model]
    else:
        named = (item for item in outline.classes if item.name == name)
        chosen = sorted(named, key=lambda item: item.first - item.last)[:1]
    return [ClassText(item.name, _shingles(code, outline, item)) for item in chosen]


def _shingles(code: str, outline: Outline, item: ClassOutline) -> npt.NDArray[np.uint64]:
    glue = sorted(
        (first, last)
        for name, first, last in outline.functions
        if name in CONTRACT_FUNCTIONS and item.first < first and last <= item.last
    )
    spans, start = [], item.first
    for first, last in glue:
        if first > start:
            spans.append((start, first - 1))
        start = max(start, last + 1)
    if start <= item.last:
        spans.append((start, item.last))
    tokens = span_tokens(code, outline, spans)
    masked = [
        _ANY if before != "." and token.isidentifier() and not iskeyword(token) else token
        for before, token in pairwise(["", *tokens])
    ]
    return shingle_hashes(masked, frozenset())


#: Tokens per shingle.
SHINGLE = 5

_BLOCK = 256
_WORD_OR_SIGN = re.compile(r"\w+|[^\w\s]")

Numbers = np.ndarray[Any, np.dtype[np.int64]]


def split_tokens(text: str) -> list[str]:
    r"""Return the matches of `\w+|[^\w\s]`: words, numbers and single signs, without white space.

    They do not depend on the tokenizer of a model. Those of a byte-pair tokenizer differ: it splits long names, and
    counts indentation and line breaks.

    Args: text: code or prose.
    Returns: the tokens, in order.
    """
    return _WORD_OR_SIGN.findall(text)


def shingles(text: str) -> Numbers:
    """Return the hashed shingles of a text; a text shorter than one shingle is one shingle.

    Args: text: any text, split by `split_tokens`.
    Returns: sorted distinct 32-bit hashes, as int64; never empty.
    """
    tokens = split_tokens(text)
    grams = (" ".join(tokens[start : start + SHINGLE]) for start in range(max(1, len(tokens) - SHINGLE + 1)))
    return np.array(sorted({zlib.crc32(gram.encode()) for gram in grams}), np.int64)


def near_pairs(sets: Sequence[Numbers], threshold: float) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield all ordered pairs of different indices whose sets are near each other, in blocks.

    Args: sets: as from `shingles`. threshold: the least Jaccard similarity, above 0.
    Returns: two arrays of equal length per block; each pair occurs in both orders.
    """
    import scipy.sparse as sp  # it takes long to import

    if len(sets) < 2:
        return
    sizes = np.array([len(item) for item in sets], np.float64)
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    columns = np.unique(np.concatenate(list(sets)), return_inverse=True)[1]
    shape = (len(sets), int(columns.max(initial=0)) + 1)
    matrix = sp.csr_array((np.ones(len(columns), np.float32), columns, ends), shape=shape)
    for start in range(0, len(sets), _BLOCK):
        stop = min(start + _BLOCK, len(sets))
        shared = (matrix[start:stop] @ matrix.T).toarray()
        shared[np.arange(stop - start), np.arange(start, stop)] = 0  # with itself
        union = sizes[start:stop, None] + sizes[None, :] - shared
        first, second = np.nonzero(shared >= threshold * union)
        yield first + start, second
