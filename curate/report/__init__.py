"""`report.md` of a snapshot, and its figures."""
