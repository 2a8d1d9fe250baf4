"""Snapshots that exist already: deltas, the reference corpus, novelty."""
