"""Resolution of the names in a source: modules, symbols, registrations, values."""
