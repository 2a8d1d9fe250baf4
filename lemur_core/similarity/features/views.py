"""The views of a code for comparisons: tree, shingles and structure, computed from that code alone."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.features import Detail
from lemur_core.similarity.features.fingerprint import fingerprint
from lemur_core.similarity.features.minhash import signature
from lemur_core.similarity.features.outline import Outline
from lemur_core.similarity.features.tokens import literal_digest, region_tokens, shingle_hashes


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

    Args:
        outline: the outline of `code`.
        detail: what the shingles keep of names and values.
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
    """Return the signature, cached by content: near-copies, which are common, share their shingle set with a
    neighbor.
    """
    known = _SIGNATURES.get(shingle_set)
    if known is None:
        if len(_SIGNATURES) >= 4096:
            _SIGNATURES.clear()
        known = _SIGNATURES[shingle_set] = signature(shingles)
    return known


_SIGNATURES: dict[bytes, npt.NDArray[np.uint32]] = {}
