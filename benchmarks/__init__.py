"""Claims of speed, memory and quality: one command each, against the peer in the same run."""
