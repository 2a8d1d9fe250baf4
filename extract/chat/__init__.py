"""Conversations to fine-tune on, made of the observed facts of specs; their answers are never upstream source."""
