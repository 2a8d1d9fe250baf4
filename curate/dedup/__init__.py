"""The decisions of the strict profile."""
