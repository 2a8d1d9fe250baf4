"""Write the source text of a module from its graph alone."""
