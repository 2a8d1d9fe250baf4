"""Values that arguments may have, as expressions."""
