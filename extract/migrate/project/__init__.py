"""A block written into a project of many files."""
