"""Records in, a deduplicated, split, explained snapshot out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curate import commands as commands
    from curate.folder.novelty import Novelty
    from curate.interface import CuratedNetwork, Snapshot, curate
    from curate.model.options import CurateOptions
else:

    def __getattr__(name: str) -> object:
        """Import a public name when it is accessed (PEP 562), since the commands import this package, too."""
        if name == "commands":
            import curate.commands as module

            return module
        if name == "CurateOptions":
            from curate.model import options as module
        elif name == "Novelty":
            from curate.folder import novelty as module
        elif name in __all__:
            from curate import interface as module
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(module, name)


__all__ = ["CurateOptions", "CuratedNetwork", "Novelty", "Snapshot", "curate"]
