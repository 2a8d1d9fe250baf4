"""Python source as data: scopes and names, edits by offset, names without collisions."""
