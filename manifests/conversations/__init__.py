"""The common parts of all fine-tuning conversations: drafts, skips, sampling, tables, card and checks."""
