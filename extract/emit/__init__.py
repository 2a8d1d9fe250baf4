"""Self-contained files: the closure of a class, put in order and written out."""
