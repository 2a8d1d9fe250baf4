"""Results of an extraction, and access to the blocks of an extraction folder."""
