"""`report.md` of an extraction, and its figures."""
