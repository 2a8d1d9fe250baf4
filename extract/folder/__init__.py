"""The extraction folder: write, open, verify, report, show."""
