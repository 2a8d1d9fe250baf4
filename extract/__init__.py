"""Source code in, validated blocks and neutral specs out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extract.extractor import BlockExtractor
    from extract.extractor import extract_to as extract_to
    from extract.interface import BlockLibrary, LibraryBlock, extract
    from extract.model.blocks import load_block
    from extract.model.options import ExtractOptions
    from extract.model.results import Options as Options
else:

    def __getattr__(name: str) -> object:
        """Import a public name when it is accessed (PEP 562), since the sandbox imports this package, too."""
        if name == "load_block":
            from extract.model import blocks as module
        elif name == "ExtractOptions":
            from extract.model import options as module
        elif name in ("BlockExtractor", "Options", "extract_to"):
            from extract import extractor as module
        elif name in __all__:
            from extract import interface as module
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(module, name)


__all__ = ["BlockExtractor", "BlockLibrary", "ExtractOptions", "LibraryBlock", "extract", "load_block"]
