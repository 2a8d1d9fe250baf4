"""The small networks of the experts: language model, projector, router, and their training loop."""
