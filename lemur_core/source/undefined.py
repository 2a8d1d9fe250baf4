"""Names that a file reads and does not define."""

import ast

from pyflakes import messages
from pyflakes.checker import Checker

_KINDS = (messages.UndefinedName, messages.UndefinedExport, messages.ImportStarUsed)


def drop_unevaluated(tree: ast.Module) -> None:
    """Remove the annotations that Python never evaluates: quoted ones, and all if the file postpones them.

    Args: tree: changed in place; a removed annotation becomes None.
    """
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
                # In `list["Block"]` the subscript is evaluated, the quoted part is not.
                for inner in ast.walk(annotation):
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                        inner.value = None


def find_undefined_names(tree: ast.Module) -> dict[str, str]:
    """Return the undefined names by pyflakes; also star imports, which hide such names.

    Args: tree: of a whole module.
    Returns: by name, where it is used first and pyflakes' message: `line 3: undefined name 'x'`.
    """
    lines: dict[str, str] = {}
    for item in Checker(tree, filename="block.py").messages:
        if isinstance(item, _KINDS):
            lines.setdefault(str(item.message_args[0]), f"line {item.lineno}: {item.message % item.message_args}")
    return lines
