"""Proofs about emitted files, run in the sandbox; each guest module is next to its host module."""
