"""What names in a source refer to: modules, symbols, registrations, values."""
