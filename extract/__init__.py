"""Source code in, validated blocks and neutral specs out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extract.extractor import BlockExtractor, Options, extract_to

__all__ = ["BlockExtractor", "Options", "extract_to"]


def __getattr__(name: str) -> object:
    """The public names, imported when they are asked for (PEP 562): the sandbox imports this package too."""
    if name in __all__:
        from extract import extractor

        return getattr(extractor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
