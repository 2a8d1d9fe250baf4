"""From a plan to verified networks: prompts, models and their answers, the steps, the loop that sends errors back."""
