"""Read what the code of a class says in words: names of its parts and of what it calls, comments and docstrings."""

import ast
import re
from collections.abc import Iterable, Iterator

from extract.search.words import name_stems, stems
from lemur_core.source.scopes import last_name

#: The next statement at the left margin ends a class; a comment or a closing bracket does not.
_NEXT = re.compile(r"^[^\s#)\]}]", re.MULTILINE)
_CLASS = re.compile(r"^class +(\w+)", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#+(.*)", re.MULTILINE)


def iterate_classes(code: str, names: Iterable[str] | None = None) -> Iterator[tuple[ast.ClassDef, str]]:
    """Yield the classes at the left margin with their texts, each parsed alone, since files are long.

    A class that cannot be parsed alone, such as one with a string that reaches the margin, is left out.

    Args: names: only classes of these names.
    """
    wanted = None if names is None else set(names)
    for match in _CLASS.finditer(code):
        if wanted is not None and match[1] not in wanted:
            continue
        after = _NEXT.search(code, match.end())
        text = code[match.start() : after.start() if after else len(code)]
        try:
            (node,) = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if isinstance(node, ast.ClassDef):
            yield node, text


def stems_of_class(cls: ast.ClassDef, text: str, *, described: bool = True) -> dict[str, list[str]]:
    """Return the stems of what a class says, by field: arguments, parts, layers, operations and text.

    Args:
        cls, text: from `iterate_classes`.
        described: with its own docstring; those of its methods count in any case.
    """
    parts, layers, operations, arguments = (dict[str, None]() for _ in range(4))
    texts: list[str] = []
    for node in ast.walk(cls):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                parts[node.attr] = None
        elif isinstance(node, ast.Call):
            called = last_name(node.func)
            if called[:1].isupper():
                layers[called] = None
            elif called and not (isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call)):
                operations[called] = None
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            if described or node is not cls:
                texts.append(ast.get_docstring(node) or "")
            if isinstance(node, ast.FunctionDef) and node.name in ("__init__", "forward"):
                names = (argument.arg for argument in [*node.args.args, *node.args.kwonlyargs])
                arguments |= dict.fromkeys(name for name in names if name != "self")
    named = {"arguments": arguments, "parts": parts, "layers": layers, "operations": operations}
    texts += _COMMENT.findall(text)
    return {
        **{field: [stem for name in names for stem in name_stems(name)] for field, names in named.items()},
        "text": stems(" ".join(texts)),
    }
