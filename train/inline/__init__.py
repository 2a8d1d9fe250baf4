"""Several closed files become one module in which each part's class behaves as in its own file; pure, only text."""

from train.inline.inliner import Inlined, inline
from train.inline.reading import Part

__all__ = ["Inlined", "Part", "inline"]
