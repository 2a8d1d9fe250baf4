"""A module's source text, written from its graph alone."""
