"""Extraction of validated blocks and source-free specs from source code."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extract.extractor import BlockExtractor, extract_to
    from extract.model.blocks import load_block
    from extract.model.results import Options

__all__ = ["BlockExtractor", "Options", "extract_to", "load_block"]


def __getattr__(name: str) -> object:
    """Return the public names, imported on first use (PEP 562): the sandbox imports this package, too."""
    if name == "load_block":
        from extract.model.blocks import load_block

        return load_block
    if name in __all__:
        from extract import extractor

        return getattr(extractor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
