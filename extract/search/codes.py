"""Find blocks by code: the words and the token sequences that a class shares with another one.

Each is a set of features, and a feature counts as much as it is rare among the blocks. Words are the stems of all names
in the class, of the parts of a name and of the whole. Sequences are the shingles of `lemur_core.similarity.tokens`,
which leave names open, so a renamed copy has the same ones; a quarter of them is kept. The similarity is the mean of
the two weighted Jaccard similarities. Both were chosen on half of the pairs of `benchmarks.search_modular`.
"""

import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from keyword import iskeyword
from pathlib import Path

import numpy as np

from extract.model.blocks import iterate_blocks
from extract.search.index import FeatureIndex, Floats, SearchIndex, feature_arrays
from extract.search.words import name_stems
from lemur_core.files.atomic import atomic_file
from lemur_core.similarity.outline import outline_code
from lemur_core.similarity.tokens import class_texts, region_tokens, span_tokens

_SAMPLED = 4  # one shingle in so many is kept

#: Features of one code, with their counts.
Counts = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CodeFeatures:
    """The features of a class or file; both are empty if it is not valid Python."""

    words: Counts
    shingles: Counts


@dataclass(frozen=True, slots=True)
class CodeIndex:
    """The features of the codes of many blocks."""

    words: FeatureIndex
    shingles: FeatureIndex

    def similar(self, code: CodeFeatures) -> Floats:
        """Return the similarity of each block's code with this one, from 0 to 1, shape (blocks,)."""
        words, shingles = self.words.similar(code.words, rare=True), self.shingles.similar(code.shingles, rare=True)
        similarity: Floats = ((words + shingles) / 2).astype(np.float32)
        return similarity

    def of_block(self, number: int) -> CodeFeatures:
        """Return the features of a block."""
        return CodeFeatures(self.words.list_of_block(number), self.shingles.list_of_block(number))


def read_features(code: str, name: str | None = None) -> CodeFeatures:
    """Return the features of the class `name` of a code, or of all its networks and the functions that they call."""
    outline = outline_code(code)
    if isinstance(outline, str):
        return CodeFeatures({}, {})
    lines = [(item.first, item.last) for item in outline.classes if item.name == name]
    tokens = region_tokens(code, outline)[0] if name is None else span_tokens(code, outline, lines)
    names = {token for token in tokens if token.isidentifier() and not iskeyword(token)}
    words = {_number(stem): 1 for token in names for stem in name_stems(token)}
    shingles = {int(item) for text in class_texts(code, name) for item in text.shingles if item % _SAMPLED == 0}
    return CodeFeatures(words, dict.fromkeys(shingles, 1))


@lru_cache(maxsize=100_000)
def _number(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def build_codes(codes: Iterable[CodeFeatures]) -> CodeIndex:
    """Return the index of the codes of blocks, which are numbered in order."""
    listed = list(codes)
    arrays = (feature_arrays([getattr(code, kind) for code in listed]) for kind in ("words", "shingles"))
    return CodeIndex(*(FeatureIndex(*array.values()) for array in arrays))


def open_codes(folder: Path, index: SearchIndex) -> CodeIndex:
    """Open the index of the codes of a folder; build it if necessary. Blocks have the numbers of `index`.

    Raises: UserError if the table of blocks cannot be read.
    """
    kept = index.path.with_name(f"code-{index.path.name}")
    try:
        with np.load(kept) as stored:
            arrays = [stored[name] for name in stored.files]
        return CodeIndex(FeatureIndex(*arrays[: len(arrays) // 2]), FeatureIndex(*arrays[len(arrays) // 2 :]))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        pass  # missing or damaged, so it is built
    rows = iterate_blocks(folder, ("block", "name", "code"))
    codes = {row.block: read_features(row.code, row.name) for row in rows if row.code is not None}
    built = build_codes(codes.get(block, CodeFeatures({}, {})) for block in index.facts["block"])
    with atomic_file(kept) as part, part.open("wb") as file:
        np.savez(file, *built.words.arrays, *built.shingles.arrays)
    return built
