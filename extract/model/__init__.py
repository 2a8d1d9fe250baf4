"""Results of an extraction, and the blocks of a finished one."""
