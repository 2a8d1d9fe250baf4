"""Finished runs and studies, traced to their blocks."""
