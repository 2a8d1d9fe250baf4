"""Records in, a deduplicated, split, explained snapshot out."""
