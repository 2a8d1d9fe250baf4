"""Our stand-in files as modules of a library, so that closures take from them as from any other source."""

import functools
from pathlib import Path

from extract.modules import Library, Module
from extract.sources import Source, SourceFile
from extract.standins import find_stand_in
from lemur_core.source.parse import parse_file
from manifests.swhid import blob_sha1

SOURCE_NAME = "lemur-curator"


@functools.cache
def standin_source() -> Source:
    """The source whose files are our stand-ins."""
    root = Path(__file__).parent
    files = tuple(
        SourceFile(path, "extract.standins." + path.removesuffix(".py").replace("/", "."), False, blob_sha1(data))
        for path, data in sorted((p.relative_to(root).as_posix(), p.read_bytes()) for p in root.rglob("*.py"))
    )
    return Source(
        name=SOURCE_NAME,
        kind="folder",
        version="",
        origin="",
        license="MIT",
        root=root,
        files=files,
        digest="",
        swhid="",
        requires=(),
    )


def standin_module(library: Library, file: str) -> Module:
    """The module of one stand-in file, by its path below this folder."""
    key = (SOURCE_NAME, file)
    if key not in library.by_path:
        source = standin_source()
        library.adopt(
            source, next(f for f in source.files if f.path == file), parse_file((source.root / file).read_bytes())
        )
    return library.by_path[key]


def operator_of(name: str, namespace: str = "") -> tuple[str, str] | None:
    """The stand-in (file, function) of a compiled operator; `namespace` is that of `torch.ops.NAMESPACE.NAME`."""
    found = find_stand_in(name, namespace)
    return (found.file, found.function) if found is not None else None
