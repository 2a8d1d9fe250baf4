"""Files of a finished folder, foreign or damaged perhaps: how they are read, and which of them a browser might run.

A pipe would be waited for without end, and a device would be read without end: neither is opened.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from lemur_core.files.errors import MissingNameError, UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import make_visible
from manifests.records import first_fault

#: Files of text or JSON beyond this size are not read.
_MOST_BYTES = 2 << 30

#: What the readers of a folder raise where its contents are not what they should be.
READ_ERRORS = (OSError, ValueError, LookupError, RecursionError, pa.ArrowException)

#: What a check, or the page, of such a folder may raise in addition: values that fit their columns but not each other.
CHECK_ERRORS = (*READ_ERRORS, TypeError, AttributeError, ArithmeticError)


@contextlib.contextmanager
def reading(folder: Path, kind: str) -> Iterator[None]:
    """Report what cannot be read in a folder as one line.

    Args: folder, kind: the folder, and its kind for the message.
    Returns: a context manager.
    Raises: UserError instead of `READ_ERRORS`.
    """
    try:
        yield
    except MissingNameError:
        raise
    except READ_ERRORS as error:
        again = "run `lemur verify`, or create the folder again"
        raise UserError(f"{folder}: damaged {kind}: {describe(error)}; {again}") from error


def describe(error: BaseException) -> str:
    """Describe in one line what is wrong with a file.

    Args: error: one of `CHECK_ERRORS`.
    Returns: its message, visible and not too long; its type too where the message alone says little.
    """
    if isinstance(error, ValidationError):
        return make_visible(first_fault(error), 300)
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, RecursionError):
        return "nested too deeply"
    lines = str(error).splitlines() or [""]
    bare = isinstance(error, (LookupError, TypeError, AttributeError, ArithmeticError)) or not lines[0]
    bare = bare and not isinstance(error, pa.ArrowException)
    return make_visible(f"{type(error).__name__}: {lines[0]}" if bare else lines[0], 300)


def read_bytes(path: Path) -> bytes:
    """Read a file whole.

    Args: path: a file of a finished folder.
    Returns: its bytes.
    Raises: OSError if it is not a file, or too large.
    """
    check_plain(path)
    if path.stat().st_size > _MOST_BYTES:
        raise OSError(f"{path}: has more than {_MOST_BYTES >> 30} GiB")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Read a file of UTF-8 text whole.

    Args: path: a file of a finished folder.
    Returns: its text, with unchanged line endings.
    Raises: OSError as `read_bytes`; ValueError if it is not UTF-8.
    """
    return read_bytes(path).decode("utf-8")


def read_json(path: Path) -> Any:
    """Read a file of JSON.

    Args: path: a file of a finished folder.
    Returns: its value, which may be of any type.
    Raises: OSError as `read_bytes`; ValueError or RecursionError if it is not JSON.
    """
    return json.loads(read_bytes(path))


#: Suffixes of what a browser or a desktop runs. No command of ours writes one apart from its page.
_RUN = frozenset(
    (
        *(".html", ".htm", ".xhtml", ".xht", ".shtml", ".mht", ".mhtml", ".hta", ".xml", ".xsl", ".xslt", ".rdf"),
        *(".js", ".mjs", ".cjs", ".wasm", ".swf", ".svg", ".svgz", ".pdf"),
        *(".desktop", ".url", ".webloc", ".lnk", ".command"),
    )
)


def is_active(name: str) -> bool:
    """Return whether a browser might run a file, by its name with its suffix."""
    return PurePosixPath(name.rstrip(". ")).suffix.lower() in _RUN
