"""A finished folder as a page to look at: one `index.html`, and beside it what is read on demand."""
