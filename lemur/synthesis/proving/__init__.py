"""From an answer to a verified network: the steps, and the loop that sends errors back."""
