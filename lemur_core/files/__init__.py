"""Utilities that know nothing of networks: files, processes, progress, errors."""
