"""The contracts on disk: records, schemas, manifests, dataset folders."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manifests.folders.manifest import read_manifest
    from manifests.interface import FinishedFolder, open_folder, publish, pull
else:

    def __getattr__(name: str) -> object:
        """Import a public name when it is accessed (PEP 562), since all packages import this one."""
        if name in __all__:
            from manifests import interface

            return getattr(interface, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["FinishedFolder", "open_folder", "publish", "pull", "read_manifest"]
