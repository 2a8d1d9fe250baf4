"""Self-contained files: the closure of a class, ordered and rendered."""
