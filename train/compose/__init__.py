"""Networks assembled from blocks."""
