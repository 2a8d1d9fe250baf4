"""Python source as data: scopes and names, edits by offset, naming without collisions."""
