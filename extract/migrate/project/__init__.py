"""Insert a block into a project of many files."""
