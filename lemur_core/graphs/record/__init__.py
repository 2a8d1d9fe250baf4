"""Recording the operations of one run, as values that never change."""
