"""Read files of others without being led out of their folder, kept waiting, or flooded."""

import errno
import os
from pathlib import Path


def locate_inside(folder: Path, path: Path) -> Path:
    """Return the file that a path in a folder names, behind any links.

    A hard link cannot be distinguished from a file.

    Args:
        folder: the folder that is read.
        path: listed there without entering links to folders.
    Returns: an existing plain file.
    Raises: OSError, with a `strerror` for people, if a link leaves the folder, or there is no plain file.
    """
    target = Path(os.path.realpath(path, strict=True)) if path.is_symlink() else path  # resolve() hides loops
    if target is not path and not target.is_relative_to(folder.resolve()):
        raise OSError(errno.EXDEV, "a link that leaves the folder is not followed", str(path))
    if not target.is_file():
        raise OSError(errno.EINVAL, "it is neither a file nor a link to one", str(path))
    return target
