"""Stand-in source files, one family of operators a file; each is complete in itself."""
