"""Neutral specs: facts about the design and behaviour of a block, without passages of its source."""
