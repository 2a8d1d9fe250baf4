"""The folder of a synthesis: written, verified, reported, shown."""
