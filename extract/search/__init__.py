"""`lemur search`: find the blocks of an extraction folder by name, behaviour or computation graph."""
