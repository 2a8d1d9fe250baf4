"""A local folder, read where it lies."""

import os
from collections.abc import Iterator
from pathlib import Path

from extract.sources.contents import Contents, check_bounds, list_files, tree_digest
from extract.sources.layout import keep_paths
from extract.sources.metadata import is_text, read_facts
from extract.sources.model import Source
from lemur_core.files.errors import UserError
from manifests.swhid import directory_swhid

_NOT_CODE = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


def read_folder(spec: str) -> Source:
    """The Python files of a folder; links are followed to files, not to folders.

    Raises: UserError if it is no folder, cannot be read, or holds no Python code.
    """
    root = Path(spec).expanduser()
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "no such folder"
        raise UserError(f"{spec}: {what}; name a folder of Python code, a package or git+URL")
    root = root.resolve()
    try:
        contents = _read(root, spec)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from error
    if not contents.python:
        raise UserError(f"{spec}: holds no Python code (tests, docs, examples and benchmarks aside)")
    facts = read_facts(contents.texts)
    files = list_files(contents.python, within=root.name if "__init__.py" in contents.python else "")
    return Source(
        name=root.name or "root",
        kind="folder",
        version="",
        origin="",
        license=facts.license,
        root=root,
        files=files,
        digest=tree_digest(files),
        swhid=directory_swhid((file.path, file.blob) for file in files),
        requires=facts.requires,
    )


def _read(root: Path, spec: str) -> Contents:
    paths = list(_walk(root))
    python, texts = keep_paths(paths), [path for path in paths if is_text(path)]
    check_bounds(spec, ((root / path).stat().st_size for path in (*python, *texts)))
    return Contents(
        {path: (root / path).read_bytes() for path in python}, {path: (root / path).read_bytes() for path in texts}
    )


def _walk(root: Path) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise error

    for folder, below, names in os.walk(root, onerror=fail):
        below[:] = sorted(name for name in below if not _is_aside(Path(folder, name)))
        for name in names:
            path = Path(folder, name)
            if path.is_file():
                yield path.relative_to(root).as_posix()


def _is_aside(folder: Path) -> bool:
    """Whether a folder holds no code of this source: hidden, made by tools, or an environment."""
    name = folder.name
    return name.startswith(".") or name in _NOT_CODE or name.endswith(".egg-info") or (folder / "pyvenv.cfg").is_file()
