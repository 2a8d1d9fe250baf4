"""Number of distinct codes after each stage of curation: text, similar text, similar structure, computation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.index import KeptSet, LexicalIndex, StructuralIndex, Verdict, select
from lemur_core.similarity.minhash import PERMUTATIONS, IntArray, banding_for
from lemur_core.similarity.outline import outline_code
from lemur_core.similarity.views import Views, compute_views, map_codes

#: The thresholds of profile `strict`: Jaccard of shingles, and of fingerprints' elements.
LEXICAL, STRUCTURAL = 0.90, 0.95
_FEW = 32  # codes processed without worker processes


@dataclass(frozen=True, slots=True)
class Distinct:
    """The number of codes that remain after each stage, each following the previous one.

    Attributes:
        codes: comparable codes.
        exact: distinct except for comments, docstrings and layout.
        lexical: also without text similar to an earlier remaining code.
        structural: also without similar structure.
        graph: also without the same computation, where it is known.
    """

    codes: int
    exact: int
    lexical: int
    structural: int
    graph: int


def count_distinct(codes: Sequence[str], graphs: Sequence[str | None], *, jobs: int | None = None) -> Distinct:
    """Count distinct codes by the default rules of `lemur curate`, in order: the first of several duplicates is kept.

    Args:
        graphs: the identity of each code's computation graph (G0); None where it is unknown.
        jobs: the number of processes; None for one per available core.
    Returns: the number of codes, then of those that remain after each stage.
    """
    known = {index: graph for index, graph in enumerate(graphs) if graph is not None}
    stages = [verdict.stage for verdict in decide(codes, known, jobs=jobs).values()]
    counts = [len(stages)]
    for stage in ("exact", "lexical", "structural", "graph"):
        counts.append(counts[-1] - stages.count(stage))
    return Distinct(*counts)


def decide(codes: Sequence[str], graphs: Mapping[int, str], *, jobs: int | None = None) -> dict[int, Verdict]:
    """Return a verdict for each code by index, best first; codes that cannot be compared are left out.

    Args: graphs: known identities of computation graphs (G0), by the index of the code.
    """
    views = {index: view for index, view in enumerate(_compute_views(codes, jobs)) if isinstance(view, Views)}
    table = _HashTable(len(codes), views)
    lexical = LexicalIndex(table, LEXICAL, banding_for(LEXICAL))
    return select(list(views), KeptSet(table, lexical, StructuralIndex(table.elements, STRUCTURAL), graphs))


class _HashTable:
    """Class numbers of the codes by index: equal views have equal numbers, -1 without views."""

    def __init__(self, count: int, views: Mapping[int, Views]) -> None:
        self.tree, _ = _number_digests(count, {index: view.tree for index, view in views.items()})
        self.shingle_set, sets = _number_digests(count, {index: view.shingle_set for index, view in views.items()})
        self.fingerprint, structures = _number_digests(
            count, {index: view.fingerprint for index, view in views.items()}
        )
        self._shingles = [views[index].shingles for index in sets]
        self.elements = [views[index].elements for index in structures]
        signatures = [views[index].signature for index in sets]
        self.signatures = np.array(signatures, np.uint32).reshape(-1, PERMUTATIONS)
        self.set_sizes: IntArray = np.array([len(view) for view in self._shingles], np.int64)

    def shingles(self, shingle_set: int) -> npt.NDArray[np.uint64]:
        """Return the sorted distinct shingle hashes of one set."""
        return self._shingles[shingle_set]


def _number_digests(count: int, digests: Mapping[int, bytes]) -> tuple[IntArray, list[int]]:
    """Number the distinct digests. Returns: the numbers by index, and the first index of each number."""
    numbers: IntArray = np.full(count, -1, np.int64)
    known: dict[bytes, int] = {}
    first: list[int] = []
    for index, digest in digests.items():
        numbers[index] = known.setdefault(digest, len(known))
        if len(first) < len(known):
            first.append(index)
    return numbers, first


def _compute_views(codes: Sequence[str], jobs: int | None) -> list[Views | str]:
    if len(codes) <= _FEW:
        return [_compute_view(code) for code in codes]
    pairs = ((str(index).encode(), code) for index, code in enumerate(codes))
    return [view for chunk in map_codes(_compute_view, pairs, jobs) for _, view in chunk]


def _compute_view(code: str) -> Views | str:
    outline = outline_code(code)
    return outline if isinstance(outline, str) else compute_views(code, outline)
