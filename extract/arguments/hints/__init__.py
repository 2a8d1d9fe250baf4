"""Hints from source text: how the corpus itself constructs and calls a class."""

from extract.arguments.hints.finder import Companion, HintFinder, Hints, ObservedCall

__all__ = ["Companion", "HintFinder", "Hints", "ObservedCall"]
