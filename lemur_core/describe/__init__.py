"""Describe a graph for readers: named patterns, sentences, pictures."""
