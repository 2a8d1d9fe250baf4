"""Names that a file reads and nothing in it defines."""

import ast

from pyflakes import messages
from pyflakes.checker import Checker

_KINDS = (messages.UndefinedName, messages.UndefinedExport, messages.ImportStarUsed)


def drop_unevaluated(tree: ast.Module) -> None:
    """Leave out the annotations that Python never evaluates: quoted ones, and where the file postpones them, all."""
    postponed = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and "annotations" in {a.name for a in node.names}
        for node in tree.body
    )
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            annotation = getattr(node, field, None)
            if isinstance(annotation, ast.expr) and postponed:
                setattr(node, field, ast.copy_location(ast.Constant(None), annotation))
            elif isinstance(annotation, ast.expr):
                for inner in ast.walk(annotation):
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                        inner.value = None


def undefined_names(tree: ast.Module) -> dict[str, str]:
    """What pyflakes finds undefined, each with where that is; a star import, which hides such names, too."""
    found: dict[str, str] = {}
    for item in Checker(tree, filename="block.py").messages:
        if isinstance(item, _KINDS):
            found.setdefault(str(item.message_args[0]), f"line {item.lineno}: {item.message % item.message_args}")
    return found
