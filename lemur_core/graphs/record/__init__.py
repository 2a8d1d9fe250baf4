"""Record the operations of one run as immutable values."""
