"""The gate for contributions to LEMUR: networks and statistics in, a verdict on each out."""
