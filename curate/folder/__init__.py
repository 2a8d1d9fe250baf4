"""The snapshot folder: written, verified, explained, shown."""
