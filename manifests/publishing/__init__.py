"""Publish finished folders on the Hugging Face Hub, and fetch them."""
