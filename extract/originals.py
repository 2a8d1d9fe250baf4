"""Where the originals of blocks can be imported from: each source in an environment of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from extract.runtime import GIVEN, Runtime, runtime_for
from extract.sources import Source


@dataclass(frozen=True, slots=True)
class Environment:
    """Folders for the beginning of `sys.path`: a source and what it needs; none for what the runtime has."""

    folders: tuple[Path, ...]


def environment_of(source: Source) -> Environment:
    """Install a source and what it needs in a folder of its own: a released package from its wheel, else its files.

    What the declared runtime has (torch, torchvision) is imported from there: it is what everything runs on.
    """
    name, _, version = source.name.partition("@")
    if name in GIVEN:
        return Environment(())
    if source.kind == "package":
        runtime = runtime_for([f"{name}=={version}"])
        if any(item.partition("==")[0] == name for item in runtime.installed):
            return Environment(_folders(runtime))
    runtime = runtime_for(source.requires)
    return Environment((source.root, *_folders(runtime)))


def _folders(runtime: Runtime) -> tuple[Path, ...]:
    return () if runtime.folder is None else (runtime.folder,)


def environments(sources: Sequence[Source]) -> dict[str, Environment]:
    """The environment of each source, by its name."""
    return {source.name: environment_of(source) for source in sources}
