"""`lemur search`: an extraction folder's blocks by what they are called, what they do, and what their graphs are."""
