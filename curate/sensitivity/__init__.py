"""`lemur sensitivity`: how many records the strict profile keeps, over a grid of lexical and structural thresholds.

The rows are read, and their features had, once; every grid point then decides all records anew, as `lemur curate` would
with these thresholds and no minimum supports.
"""

from curate.sensitivity.grid import LEXICAL_GRID, STRUCTURAL_GRID, Grid, GridPoint, decide_grid
from curate.sensitivity.run import parse_threshold, sensitivity

__all__ = ["LEXICAL_GRID", "STRUCTURAL_GRID", "Grid", "GridPoint", "decide_grid", "parse_threshold", "sensitivity"]
