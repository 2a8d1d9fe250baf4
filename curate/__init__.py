"""Records in, a deduplicated, split, explained snapshot out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curate.distinct import Distinct, count_distinct

__all__ = ["Distinct", "count_distinct"]


def __getattr__(name: str) -> object:
    """The public names, imported when they are asked for (PEP 562): the command starts without numpy."""
    if name in __all__:
        from curate import distinct

        return getattr(distinct, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
