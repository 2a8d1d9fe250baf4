"""Finished folders: their kinds, manifests, tables and checks."""
