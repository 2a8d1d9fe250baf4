"""Insert a block into a network in a single file."""
