"""The views of a code for comparisons: tree, shingles and structure, computed from that code alone.

The structure is which layers a network calls, how often, in which order, and with which sizes. The definition is the
one published with nn-dup (order, bag of call names, bucketed hyperparameters), fixed where it misreads valid code: the
training functions of the LEMUR contract are left out, and a size counts in the same way by keyword and by position.
docs/similarity.md lists the differences.

Source: arXiv:2512.04329, section 3.2; https://github.com/ABrain-One/nn-dup
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lemur_core.files.workers import map_chunks
from lemur_core.similarity import Detail
from lemur_core.similarity.index import KeptSet, LexicalIndex, StructuralIndex, Verdict, select
from lemur_core.similarity.minhash import PERMUTATIONS, IntArray, banding_for, signature
from lemur_core.similarity.outline import Outline, outline_code
from lemur_core.similarity.tokens import literal_digest, region_tokens, shingle_hashes


@dataclass(frozen=True, slots=True)
class Views:
    """The views of one valid code. Digests have 16 bytes."""

    tree: bytes  # equal for codes that differ only in comments, docstrings and layout
    literal: bytes  # equal for model regions with the same tokens, names and numbers included
    shingle_set: bytes  # equal for equal shingle sets
    shingles: npt.NDArray[np.uint64]  # sorted distinct hashes, never empty
    signature: npt.NDArray[np.uint32]  # MinHash, shape (256,)
    fingerprint: bytes
    elements: npt.NDArray[np.uint64]  # of the fingerprint, sorted distinct hashes, may be empty


def compute_views(code: str, outline: Outline, detail: Detail = "abstract") -> Views | str:
    """Return the views of a code, or a short reason why it has none.

    Args: outline: the outline of `code`. detail: what the shingles keep of names and values.
    Returns: a reason only if the code has no tokens.
    """
    tokens, declared = region_tokens(code, outline)
    shingles = shingle_hashes(tokens, declared, detail)
    if not len(shingles):
        return "no code: only comments or docstrings"
    shingle_set = hashlib.blake2b(shingles.tobytes(), digest_size=16).digest()
    structure = fingerprint(outline)
    return Views(
        tree=outline.tree_digest,
        literal=literal_digest(tokens),
        shingle_set=shingle_set,
        shingles=shingles,
        signature=_find_signature(shingle_set, shingles),
        fingerprint=structure.digest,
        elements=structure.elements,
    )


def _find_signature(shingle_set: bytes, shingles: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Return the signature, cached by content: near-copies share their shingle set with a neighbor."""
    known = _SIGNATURES.get(shingle_set)
    if known is None:
        if len(_SIGNATURES) >= 4096:
            _SIGNATURES.clear()
        known = _SIGNATURES[shingle_set] = signature(shingles)
    return known


_SIGNATURES: dict[bytes, npt.NDArray[np.uint32]] = {}


#: The number of calls that count for the order of layers, as published.
SEQUENCE_CALLS = 256


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A structure: the digest of the whole, and its set of elements as sorted 64-bit hashes for the Jaccard."""

    digest: bytes  # 16 bytes; equal only when order, bag and sizes are equal
    elements: npt.NDArray[np.uint64]  # shape (n,); empty if the network calls nothing: then it matches nothing
    layers: int  # number of calls


def fingerprint(outline: Outline) -> Fingerprint:
    """Return the structural fingerprint of a module's outline."""
    bag = Counter(outline.layers)
    sizes = sorted(outline.sizes)
    elements = {_hash(f"{name}*{count}") for name, count in bag.items()}
    elements |= {_hash(f"{name}={bucket}") for name, bucket in set(sizes)}
    parts = [" ".join(outline.layers[:SEQUENCE_CALLS]), repr(sorted(bag.items())), repr(sizes)]
    return Fingerprint(
        digest=hashlib.blake2b("\n".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest(),
        elements=np.array(sorted(elements), np.uint64),
        layers=len(outline.layers),
    )


@lru_cache(maxsize=100_000)
def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


# -- many codes, in worker processes --------------------------------------------

_CHUNK_CODES = 48  # in one message to a worker

T = TypeVar("T")


def map_codes(
    work: Callable[[str], T], codes: Iterable[tuple[bytes, str]], jobs: int | None
) -> Iterator[list[tuple[bytes, T | str]]]:
    """Yield `work` of every (digest, code) pair, in order, in chunks; reads ahead only a little.

    Args:
        work: run in other processes, so it must be picklable.
        jobs: the number of processes; None for one per available core.
    Returns: (digest, result) pairs; if a worker dies on a code, the result is a text that reports it.
    """
    rest = iter(codes)
    chunks = iter(lambda: list(islice(rest, _CHUNK_CODES)), [])
    return map_chunks(partial(_with_digest, work), chunks, _report_crash, jobs)


def _with_digest(work: Callable[[str], T], item: tuple[bytes, str]) -> tuple[bytes, T | str]:
    return item[0], work(item[1])


def _report_crash(item: tuple[bytes, str]) -> tuple[bytes, str]:
    return item[0], "Python's parser crashed on it"


# Number of distinct codes after each stage of curation: text, similar text, similar structure, computation.

#: The thresholds: Jaccard of shingles, and of fingerprints' elements.
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
