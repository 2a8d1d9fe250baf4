"""Names that a file reads and nothing in it defines."""

import ast

from pyflakes import messages
from pyflakes.checker import Checker

_KINDS = (messages.UndefinedName, messages.UndefinedExport, messages.ImportStarUsed)


def undefined_names(tree: ast.Module) -> dict[str, str]:
    """What pyflakes finds undefined, each with where that is; a star import, which hides such names, too."""
    found: dict[str, str] = {}
    for item in Checker(tree, filename="block.py").messages:
        if isinstance(item, _KINDS):
            found.setdefault(str(item.message_args[0]), f"line {item.lineno}: {item.message % item.message_args}")
    return found
