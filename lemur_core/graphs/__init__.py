"""Computation graphs: record the run of a network as operations, and bring them into a canonical form."""
