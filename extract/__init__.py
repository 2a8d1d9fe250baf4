"""Source code in, validated blocks and neutral specs out."""
