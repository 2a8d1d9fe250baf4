"""LEMUR's own contract: checks, tasks and registration."""
