"""Search in the specs of an extraction folder: by names, layers and shape behaviour, ranked by SQLite's FTS5."""
