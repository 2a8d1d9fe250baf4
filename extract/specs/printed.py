"""How a block runs, as lines to paste: what `lemur show` and `lemur migrate` print, and `lemur verify` executes."""

import ast
from collections.abc import Iterator

from extract.specs.make import read_arguments, read_observed
from lemur_core.source.scopes import BUILTINS
from lemur_core.source.text import list_nodes, parse_code
from manifests.records import Block

#: All names that the search uses in arguments.
_IMPORTS = {
    "torch": "import torch",
    "nn": "from torch import nn",
    "F": "import torch.nn.functional as F",
    "np": "import numpy as np",
    "numpy": "import numpy",
    "math": "import math",
    "functools": "import functools",
    "partial": "from functools import partial",
    "types": "import types",
    "OrderedDict": "from collections import OrderedDict",
    "attrgetter": "from operator import attrgetter",
}


def print_call(row: Block, code: str | None, module: str = "") -> tuple[str, ...]:
    """Return the lines that construct a block and call it.

    Args:
        code: its file, the lean form if there is one; None if it is not known here.
        module: the dotted name to import the file by; "" for lines to paste below the file.
    Returns: no lines if it was not seen to run, or if the arguments name what neither these lines nor its file define.
    """
    calls = read_arguments(row.arguments)
    if calls is None:
        return ()
    observed = read_observed(row)
    # A new module is in train mode; blocks are known to run in eval mode, and most of them in train mode, too.
    trains = calls.forward is None or observed is None or observed.train_differs is not None
    mode = "" if trains else "block.eval()"
    unset = list(observed.uninitialized) if observed is not None else []
    filled = f"for name in {unset}: nn.init.normal_(attrgetter(name)(block), std=0.02)" if unset else ""
    lines = [f"block = {calls.constructor_call(row.name)}", *filter(None, [filled, mode, calls.forward_call()])]
    try:
        names = set(_list_names(lines)) - {row.name, "block"} - BUILTINS
    except SyntaxError:  # not what extraction wrote
        return ()
    defined = set(list_definitions(code)) if names and code is not None else set()
    if not names <= defined | _IMPORTS.keys():
        return ()
    imported = names & _IMPORTS.keys() - (set() if module else defined)
    head = [_IMPORTS[name] for name in sorted(imported)]
    if module:
        head.append(f"from {module} import {', '.join(sorted({row.name} | names - _IMPORTS.keys()))}")
    return (*head, *lines)


def _list_names(lines: list[str]) -> Iterator[str]:
    """Yield the names that lines read from outside."""
    for line in lines:
        nodes = list_nodes(parse_code(line))
        own = {node.arg for node in nodes if isinstance(node, ast.arg)}
        own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        yield from (node.id for node in nodes if isinstance(node, ast.Name) and node.id not in own)


def list_definitions(code: str) -> Iterator[str]:
    """Yield the names that the statements of a file bind, without placeholders (`Config = object`).

    Args: code: a file that parses.
    Returns: an iterator over the names, in the order of the file.
    """
    waiting: list[ast.AST] = list(parse_code(code, None).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == "object"):
            waiting += ast.iter_child_nodes(node)
