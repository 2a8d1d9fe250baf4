"""Distributed work: the executors that run tasks, and the folder through which tasks exchange files."""
