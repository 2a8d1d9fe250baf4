"""Synthesis of new networks: a language model writes them from specs; only those that pass every step are kept."""
