"""Files whose text is copied into blocks to replace compiled operators and framework bases."""
