"""Specs in, new networks out: a language model writes, each step proves, and what is kept is closed, used and new."""
