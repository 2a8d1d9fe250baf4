"""The frame of all conversations to fine-tune on: drafts and what was skipped, sampling, tables, card and checks."""
