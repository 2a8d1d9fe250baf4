"""How many of some codes are distinct, by the stages of curation: text, near text, near structure, computation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.features.minhash import PERMUTATIONS, IntArray, banding_for
from lemur_core.similarity.features.parts import outline_code
from lemur_core.similarity.features.views import Views, views_of
from lemur_core.similarity.index import LexicalIndex, StructuralIndex
from lemur_core.similarity.pool import map_codes
from lemur_core.similarity.selection import Standing, Verdict, select

#: The thresholds of profile `strict`: Jaccard of shingles, and of fingerprints' elements.
LEXICAL, STRUCTURAL = 0.90, 0.95
_FEW = 32  # are done at once, without worker processes


@dataclass(frozen=True, slots=True)
class Distinct:
    """How many of some codes stay after each stage, each after those before it.

    Attributes:
        codes: that can be compared.
        exact: but for comments, docstrings and layout.
        lexical: and no text near to one that stays.
        structural: and no structure near to one that stays.
        graph: and no computation that one that stays has, as far as that is known.
    """

    codes: int
    exact: int
    lexical: int
    structural: int
    graph: int


def count_distinct(codes: Sequence[str], graphs: Sequence[str | None], *, jobs: int | None = None) -> Distinct:
    """Count distinct codes as `lemur curate` decides by default, in their order: the first of several stays.

    Args: graphs: what each code computes (G0); None where that is not known.
    """
    known = {place: graph for place, graph in enumerate(graphs) if graph is not None}
    left = [verdict.stage for verdict in decide(codes, known, jobs=jobs).values()]
    counts = [len(left)]
    for stage in ("exact", "lexical", "structural", "graph"):
        counts.append(counts[-1] - left.count(stage))
    return Distinct(*counts)


def decide(codes: Sequence[str], graphs: Mapping[int, str], *, jobs: int | None = None) -> dict[int, Verdict]:
    """What becomes of each code by its place, best first; those that cannot be compared are left out.

    Args: graphs: what codes compute (G0), by place, as far as that is known.
    """
    views = {place: found for place, found in enumerate(_views(codes, jobs)) if isinstance(found, Views)}
    table = _Table(len(codes), views)
    lexical = LexicalIndex(table, LEXICAL, banding_for(LEXICAL))
    return select(list(views), Standing(table, lexical, StructuralIndex(table.elements, STRUCTURAL), graphs))


class _Table:
    """Views by the place of their code: equal ones have equal numbers, -1 where there are none."""

    def __init__(self, count: int, views: Mapping[int, Views]) -> None:
        self.tree, _ = _numbered(count, {place: one.tree for place, one in views.items()})
        self.shingle_set, sets = _numbered(count, {place: one.shingle_set for place, one in views.items()})
        self.fingerprint, structures = _numbered(count, {place: one.fingerprint for place, one in views.items()})
        self._shingles = [views[place].shingles for place in sets]
        self.elements = [views[place].elements for place in structures]
        signatures = [views[place].signature for place in sets]
        self.signatures = np.array(signatures, np.uint32).reshape(-1, PERMUTATIONS)
        self.set_sizes: IntArray = np.array([len(one) for one in self._shingles], np.int64)

    def shingles(self, shingle_set: int) -> npt.NDArray[np.uint64]:
        """The sorted distinct shingle hashes of one set."""
        return self._shingles[shingle_set]


def _numbered(count: int, digests: Mapping[int, bytes]) -> tuple[IntArray, list[int]]:
    """A number for each digest by place, and of each number the first place."""
    numbers: IntArray = np.full(count, -1, np.int64)
    known: dict[bytes, int] = {}
    first: list[int] = []
    for place, digest in digests.items():
        numbers[place] = known.setdefault(digest, len(known))
        if len(first) < len(known):
            first.append(place)
    return numbers, first


def _views(codes: Sequence[str], jobs: int | None) -> list[Views | str]:
    if len(codes) <= _FEW:
        return [_view(code) for code in codes]
    given = ((str(place).encode(), code) for place, code in enumerate(codes))
    return [found for chunk in map_codes(_view, given, jobs) for _, found in chunk]


def _view(code: str) -> Views | str:
    outline = outline_code(code)
    return outline if isinstance(outline, str) else views_of(code, outline)
