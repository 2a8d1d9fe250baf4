"""The classes of a code, each by itself, as sets of shingles: what is compared to tell whose text a class is.

A class is the lexical view of its own lines, with every class of its file by one name: who renames a class, or those
that it is made of, does not change it. The training glue of LEMUR's contract is no part of it.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.outline import CONTRACT_FUNCTIONS, ClassOutline, Outline
from lemur_core.similarity.parts import outline_code
from lemur_core.similarity.tokens import is_model_class, shingle_hashes, span_tokens

#: A name that the lexical view abstracts.
_ANY = "_"


class ClassText(NamedTuple):
    """A class of a code, and its shingles: sorted distinct hashes."""

    name: str
    shingles: npt.NDArray[np.uint64]


def class_texts(code: str, name: str | None = None) -> list[ClassText]:
    """The network classes of a code in their order, none of code that is no Python.

    Args: name: only the class of this name, the largest of several.
    """
    outline = outline_code(code)
    if isinstance(outline, str):
        return []
    if name is None:
        chosen = [item for item, model in zip(outline.classes, is_model_class(outline), strict=True) if model]
    else:
        named = (item for item in outline.classes if item.name == name)
        chosen = sorted(named, key=lambda item: item.first - item.last)[:1]
    own = {item.name for item in outline.classes}
    return [ClassText(item.name, _shingles(code, outline, item, own)) for item in chosen]


def _shingles(code: str, outline: Outline, item: ClassOutline, own: set[str]) -> npt.NDArray[np.uint64]:
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
    tokens = [_ANY if token in own else token for token in span_tokens(code, outline, spans)]
    return shingle_hashes(tokens, frozenset(), "abstract")
