"""A curation from source to snapshot, and grids of them."""
