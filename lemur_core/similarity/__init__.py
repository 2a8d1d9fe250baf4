"""Similarity of codes: shingles, fingerprints, and near-duplicate pairs."""
