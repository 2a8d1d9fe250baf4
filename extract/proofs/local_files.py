"""The files of a project that running its classes needs: foreign code sees only a copy of these.

For example, of `project/.env`, `project/notes.txt`, `project/net/__init__.py`, `project/net/anchors.json` and
`project/net/deploy.pem`, only the two in the middle are copied. Tests, documents and configurations
are, too: they construct and call the classes as their authors mean it.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from extract.sources import walk
from extract.sources.contents import MAX_FILE_BYTES, MAX_TOTAL_BYTES, PackageSource, is_about_code
from extract.sources.git import others_of
from extract.sources.store import keep_files
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import may_hold_secrets

_FORMAT = "v1"
_INIT = "__init__.py"


def copy_importable(source: PackageSource) -> Path:
    """Return a folder of the cache with the Python files of a source, and the files next to them (`is_about_code`).

    Of a local source, all data files inside its packages are copied. Hidden files, files with names of secrets
    (`may_hold_secrets`), and data files of more than 32 MiB are left out; so are all further ones once they have a GiB.

    Args: source: of a kind other than `package`.
    Returns: the folder, named by the digest of its contents.
    Raises: UserError if a file cannot be read, has changed since the source was opened, or cannot be copied.
    """
    content = {file.path: source.read(file) for file in source.files}
    try:
        content |= dict(_read_others(source))
    except FileNotFoundError as error:
        raise UserError(f"{source.name}: {error.filename} was removed while it was read; run again") from error
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in content.items()}
    digest = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:32]
    target = cache_folder("runtime", _FORMAT, "originals") / digest
    keep_files(content, target, source.name)
    return target


def _read_others(source: PackageSource) -> Iterator[tuple[str, bytes]]:
    inits = [file.path.removesuffix(_INIT) for file in source.files if file.path.rpartition("/")[2] == _INIT]
    known = {file.path for file in source.files}
    packages, total = tuple(inits), 0  # "" is the root, if it is a package itself
    root = source.root if source.kind == "folder" else others_of(source)
    for path in sorted(set(walk(root)) - known):
        name = path.rpartition("/")[2]
        is_data = not name.endswith(".py") and path.startswith(packages) and not may_hold_secrets(name)
        if not (is_data or is_about_code(path)):
            continue
        file = root / path
        try:
            size = file.stat().st_size
            if size > MAX_FILE_BYTES or total + size > MAX_TOTAL_BYTES:
                continue
            data = file.read_bytes()
        except OSError:  # it is not code: whether anything needs it is seen when that runs
            continue
        total += size
        yield path, data
