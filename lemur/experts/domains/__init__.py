"""Settings and facts of the domains."""
