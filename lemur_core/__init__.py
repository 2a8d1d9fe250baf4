"""The ground: files, Python source as data, similarity, and the sandbox."""
