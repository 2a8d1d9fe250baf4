"""Where code comes from: released packages, git repositories and local folders, fetched without running any of it."""

from extract.sources.model import Source, SourceFile
from extract.sources.opening import open_available, open_corpus, open_source

__all__ = ["Source", "SourceFile", "open_available", "open_corpus", "open_source"]
