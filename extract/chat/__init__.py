"""Conversations for fine-tuning, built from the observed facts of specs; answers never copy upstream source."""
