"""Curation divided among the tasks of an executor: the same decisions, records and splits as in one process."""
