"""The frame of chat data: draws, near-duplicates, samples for cards."""
