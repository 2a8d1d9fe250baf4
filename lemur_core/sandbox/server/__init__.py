"""The fork server and its jobs; it runs as a separate package and imports only the standard library."""
