"""Neutral specs: facts about the design and behavior of a block, without passages of its source."""
