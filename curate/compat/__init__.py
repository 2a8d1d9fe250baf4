"""The profile `nn-dup`: a re-implementation that decides as the released nn-dup 2.2.4 does, as oracle and way over."""
