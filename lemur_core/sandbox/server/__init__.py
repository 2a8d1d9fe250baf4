"""The fork server and its jobs; it runs as a package of its own and imports the standard library alone."""
