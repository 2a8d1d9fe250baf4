"""What is asked of a model: the plan of attempts and their prompts."""
