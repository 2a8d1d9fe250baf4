"""The search for arguments with which a class can be constructed and called."""
