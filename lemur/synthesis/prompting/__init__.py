"""The plan of attempts and their prompts."""
