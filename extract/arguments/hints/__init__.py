"""Hints from source text: how the corpus itself constructs and calls a class."""

from extract.arguments.hints.finder import HintFinder
from extract.arguments.hints.model import Companion, Hints, ObservedCall

__all__ = ["Companion", "HintFinder", "Hints", "ObservedCall"]
