"""Recording of real calls: what running models of a source pass to their parts."""
