"""Records in, a deduplicated, split, explained snapshot out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curate import interface as interface
    from curate.folder.novelty import Novelty
    from curate.interface import CuratedNetwork, Snapshot, curate
    from curate.model.options import CurateOptions
else:

    def __getattr__(name: str) -> object:
        """Import a public name when it is accessed (PEP 562): `--help` must not wait for tables and networks."""
        if name not in (*__all__, "interface"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import curate.interface as module

        return module if name == "interface" else getattr(module, name)


__all__ = ["CurateOptions", "CuratedNetwork", "Novelty", "Snapshot", "curate"]
