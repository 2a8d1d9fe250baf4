"""How the corpus itself builds and runs a class, found in its text."""

from extract.arguments.hints.finder import HintFinder
from extract.arguments.hints.model import Call, Companion, Hints

__all__ = ["Call", "Companion", "HintFinder", "Hints"]
