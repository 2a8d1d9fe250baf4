"""Minimized blocks: the author's text, cut to the code that the known working arguments reach."""
