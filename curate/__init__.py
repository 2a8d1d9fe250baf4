"""Records in, a deduplicated, split, explained snapshot out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curate.from_lemur import curate_from_lemur

__all__ = ["curate_from_lemur"]


def __getattr__(name: str) -> object:
    """Import the public function on demand (PEP 562): the commands import this package too."""
    if name in __all__:
        from curate.from_lemur import curate_from_lemur

        return curate_from_lemur
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
