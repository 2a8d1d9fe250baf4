"""Similarity of codes: tokens, shingles, MinHash signatures, fingerprints, and near-duplicate pairs."""
