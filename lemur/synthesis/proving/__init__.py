"""From an answer to a proved network: the steps, and the loop that sends errors back."""
