"""Neutral specs: what a block is and does, told as facts of its design and never in the words of its source."""
