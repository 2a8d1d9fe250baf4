"""Networks that are executed: whether they run, and what they compute."""
