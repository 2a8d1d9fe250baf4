"""The desk of who maintains LEMUR: the gate for contributions, and the difference of two releases."""
