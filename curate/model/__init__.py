"""Rows, records, features and options."""
