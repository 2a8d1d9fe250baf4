"""The extraction folder: written, opened, verified, reported, shown."""
