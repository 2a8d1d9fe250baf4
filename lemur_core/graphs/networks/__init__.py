"""Trace whole networks, as LEMUR's trainer constructs and calls them."""
