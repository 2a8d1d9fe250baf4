"""Shingles, fingerprints and near pairs."""
