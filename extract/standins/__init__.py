"""Files whose text goes into blocks, in the place of compiled operators and framework bases."""
