"""The comment lines at the top of a closed file and of its lean form: where it is from, and what differs there.

They fit a screen: further files are counted here, and listed by `required_repos.json`.
"""

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from lemur_core.files.markdown import plural

_WIDTH = 118
_LISTED = 24  # names of each kind of change

License = str
SourceFile = tuple[str, str]  # source and path


def describe_files(files: Iterable[SourceFile], licenses: Mapping[SourceFile, License]) -> list[str]:
    """Return the lines about the further files of a block.

    Args:
        files: source and path of each, without the block's own file.
        licenses: the license of each.

    Returns: how many files of which source are under which license; nothing if there are none.
    """
    numbers = Counter((source, licenses[source, path]) for source, path in files)
    parts = [f"{plural(number, 'file')} of {source} ({license_})" for (source, license_), number in numbers.items()]
    return wrap(f"With:    definitions from {', '.join(parts)}; see required_repos.json") if parts else []


def describe_changes(changes: Mapping[str, Collection[str]]) -> list[str]:
    """Return the lines about the changes to the author's text.

    Args: changes: by kind, such as "renamed", what was changed.
    """
    parts = [f"{kind} {shorten(texts, _LISTED)}" for kind, texts in changes.items() if texts]
    return wrap("; ".join(["Changed: imports resolved and definitions brought together", *parts]) + ".")


def shorten(names: Collection[str], most: int) -> str:
    """Return the first names, and the number of the others."""
    shown, more = list(names)[:most], len(names) - most
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def wrap(text: str) -> list[str]:
    """Return text as comment lines."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False
    )
