"""Similarity of codes: tokens, shingles, MinHash signatures, fingerprints, and near-duplicate pairs."""

from typing import Literal

#: How much of the code a token keeps: `abstract` is the published definition; `literal` keeps every name, number and
#: string, and numbers repeated shingles, so that a different activation, width or depth makes a different network.
Detail = Literal["abstract", "literal"]
