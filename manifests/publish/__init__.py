"""Publishing finished folders on the Hugging Face Hub, and fetching them."""
