"""Dimensions written as patterns: einsum's equations, einops' texts, subscripts."""

import ast
import re
from collections.abc import Iterator

_EINOPS = frozenset({"rearrange", "reduce", "repeat"})
_TOKEN = re.compile(r"\([^)]*\)|[\w]+|\.\.\.")


def text_pattern(function: str, node: ast.Call) -> Iterator[tuple[ast.expr, tuple[str, ...]]]:
    """The operands of `einsum("bchw,bc->bhw", x, y)`, `rearrange(x, "b c h w -> b (h w) c")`, and their dimensions."""
    if len(node.args) < 2:
        return
    if function == "einsum" and (equation := _text(node.args[0])):
        for operand, letters in zip(node.args[1:], equation.partition("->")[0].split(","), strict=False):
            if "." not in letters:
                yield operand, tuple(letters.replace(" ", ""))
    elif function in _EINOPS and (pattern := _text(node.args[1])):
        tokens = _TOKEN.findall(pattern.partition("->")[0])
        if "..." not in tokens:
            yield node.args[0], tuple(token if token.isidentifier() else "?" for token in tokens)


def subscript_pattern(node: ast.Subscript) -> tuple[str, ...] | None:
    """`x[:, :, ::2, ::2]` reads four dimensions."""
    if not isinstance(node.slice, ast.Tuple) or not isinstance(node.ctx, ast.Load):
        return None
    items = [i for i in node.slice.elts if not (isinstance(i, ast.Constant) and i.value is None)]
    plain = all(isinstance(i, ast.Slice | ast.Constant | ast.Name) for i in items)
    ellipsis = any(isinstance(i, ast.Constant) and i.value is ... for i in items)
    if (
        len(items) == 2
        and isinstance(items[0], ast.Slice)
        and isinstance(items[1], ast.Constant)
        and items[1].value == 0
    ):
        return ("?",) * 3  # the first token of a sequence
    return ("?",) * len(items) if plain and not ellipsis and len(items) > 2 else None


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
