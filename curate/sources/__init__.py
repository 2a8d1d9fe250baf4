"""Every SOURCE of `lemur curate` as a stream of Arrow record batches."""

from curate.sources.opening import open_source, open_sources

__all__ = ["open_source", "open_sources"]
