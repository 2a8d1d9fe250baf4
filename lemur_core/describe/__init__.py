"""A graph for readers: named patterns, sentences, pictures."""
