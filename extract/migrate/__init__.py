"""Blocks moved into code of others: into networks by LEMUR's contract, into projects."""
