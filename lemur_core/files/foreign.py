"""Read files of others without being led out of their folder, kept waiting, or flooded."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from lemur_core.files.errors import UserError
from lemur_core.files.markdown import is_unicode, make_visible


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


def check_name(path: Path | str) -> None:
    """Check that a name can be written into manifests, tables and cards, which are UTF-8.

    Args: path: of a source or an output, or any other argument.
    Raises: UserError if its bytes are not UTF-8.
    """
    if not is_unicode(str(path)):
        raise UserError(f"{make_visible(str(path))}: its name is not UTF-8, so results cannot hold it; rename it")


def check_plain(path: Path) -> None:
    """Check that reading a path ends: it is a file, or a folder without pipes, sockets and devices at any depth.

    Args: path: an existing file or folder; links to files are followed, links to folders below it are not.
    Raises: UserError if it is something else, or a folder holds something else.
    """
    special = next(_list_special(path), None)
    if special is not None:
        raise UserError(f"{make_visible(str(special))}: is a pipe, a socket or a device, not a file; name a file")


def _list_special(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        if path.exists() and not path.is_file():
            yield path
        return
    for above, _, names in os.walk(path):
        yield from (one for name in names if (one := Path(above, name)).exists() and not one.is_file())
