"""What a network computes: its run recorded as a graph of operations, in a form that tells equal computations."""
