"""Where downloads and features are kept between runs."""

import os
import sys
from pathlib import Path

from lemur_core.files.errors import UserError


def cache_folder(*parts: str) -> Path:
    """The user's cache folder of this tool (made when missing), or a folder below it.

    `LEMUR_CURATOR_CACHE` names it outright; else it lies in the platform's cache folder.

    Raises: UserError if it cannot be made.
    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    named = os.environ.get("LEMUR_CURATOR_CACHE")
    if named:
        root = Path(named).expanduser()
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches" / "lemur-curator"
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "lemur-curator"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lemur-curator"
    folder = root.joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cache folder {folder}: {error.strerror}; set LEMUR_CURATOR_CACHE to a writable one"
        ) from error
    return folder
