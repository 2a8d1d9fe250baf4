"""A block inserted into a network in one file."""
