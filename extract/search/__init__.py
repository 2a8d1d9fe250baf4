"""`lemur search`: find the blocks of an extraction folder by name, behavior or computation graph."""
