"""Insert blocks into other code: networks that follow LEMUR's contract, and whole projects."""
