"""Lean forms of blocks: the author's text cut to what the arguments that are known to work can reach."""

from extract.lean.header import LeanFile, lean_columns, lean_file
from extract.lean.stage import Leaned, Running, lean_all

__all__ = ["LeanFile", "Leaned", "Running", "lean_all", "lean_columns", "lean_file"]
