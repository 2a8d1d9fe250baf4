"""What the imports of a file bind, as expressions that mean the same elsewhere."""

import ast
from collections.abc import Iterator

from extract.hints.values import Expr

_SHORT = {"torch.nn.functional": "F", "torch.nn": "nn", "numpy": "np"}
_ROOTS = ("torch", "math", "numpy", "functools")


def imported_values(tree: ast.Module) -> tuple[dict[str, object], dict[str, str]]:
    """The values of imported names, and for each class imported under another name: what the file calls it."""
    values: dict[str, object] = {}
    renamed: dict[str, str] = {}
    for node in _imports(tree.body):
        for alias in node.names:
            if isinstance(node, ast.Import):
                bound = alias.asname or alias.name.partition(".")[0]
                whole = alias.name if alias.asname else bound
                if whole.partition(".")[0] in _ROOTS:
                    values[bound] = Expr(short_name(whole))
                elif whole.startswith("torch_") or bound.islower():
                    values[bound] = Expr(bound)
            elif alias.name != "*":
                bound = alias.asname or alias.name
                if not node.level and (node.module or "").partition(".")[0] in _ROOTS:
                    values[bound] = Expr(short_name(f"{node.module}.{alias.name}"))
                    continue
                values[bound] = Expr(alias.name)
                if bound != alias.name:
                    renamed[alias.name] = bound
    return values, renamed


def short_name(dotted: str) -> str:
    """`torch.nn.ReLU` as `nn.ReLU`."""
    for long, short in _SHORT.items():
        if dotted == long or dotted.startswith(f"{long}."):
            return short + dotted[len(long) :]
    return dotted


def _imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from _imports(node.body)
            for handler in getattr(node, "handlers", ()):
                yield from _imports(handler.body)
            yield from _imports(node.orelse)
