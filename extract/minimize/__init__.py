"""Lean forms of blocks: the author's text cut to what the arguments that are known to work can reach."""
