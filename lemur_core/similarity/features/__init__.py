"""Features of one code: tokens, shingles, MinHash signatures, structural fingerprints."""
