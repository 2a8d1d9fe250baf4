"""Numbers that a failing assertion or condition compares, evaluated where it failed."""

import ast
import contextlib
import linecache
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from extract.probe import MODULE_NAME


def compared(trace: TracebackType | None) -> list[tuple[int, int, str]]:
    """Pairs of integers that the failing lines compare, evaluated where they failed; inner frames first.

    Returns: what there was, what it was compared with, and the variable whose number of dimensions that is, if it is.
    """
    frames = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(f"{MODULE_NAME}.py"):
            frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    pairs: list[tuple[int, int, str]] = []
    for frame, line in reversed(frames[-3:]):
        for test in _tests_near(frame.f_code.co_filename, line):
            for left, right in zip([test.left, *test.comparators], test.comparators, strict=False):
                sides = (left, right), (right, left)
                for one, other in sides:
                    values = [_integers(node, frame.f_globals, frame.f_locals) for node in (one, other)]
                    if isinstance(other, (ast.Tuple, ast.List, ast.Set)) and len(values[0]) == 1:
                        values[0] *= len(values[1])
                    name = _counted(one)
                    if name or not _counted(other):
                        pairs += [(a, b, name) for a, b in zip(*values, strict=False) if a != b]
    return list(dict.fromkeys(pairs))


def _counted(node: ast.expr) -> str:
    """The variable of `x.ndim`, `x.dim()` or `len(x.shape)`."""
    text = ast.unparse(node)
    match = re.fullmatch(r"(\w+)\.(ndim|dim\(\))|len\((\w+)\.(shape|size\(\))\)", text)
    return (match[1] or match[3]) if match else ""


def _tests_near(file: str, line: int) -> list[ast.Compare]:
    """The comparisons of an assertion, or of the `if` above a raise."""
    for start in (line, line - 1, line - 2, line - 3):
        text = ""
        for number in range(start, start + 4):
            text = f"{text} {linecache.getline(file, number).strip()}".strip()
            if not re.match(r"(torch\.)?_?assert\b|if\b|elif\b", text):
                break
            for source in (text.removeprefix("el"), text.removeprefix("el").partition(":")[0] + ": pass"):
                with contextlib.suppress(SyntaxError):
                    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare)]
    return []


def _integers(node: ast.expr, names: dict[str, Any], local: Mapping[str, Any]) -> list[int]:
    try:
        value = eval(compile(ast.Expression(node), "<compared>", "eval"), names, dict(local))
    except Exception:  # noqa: BLE001 - names of foreign code may do anything; then nothing is known
        return []
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [value]
    if isinstance(value, (tuple, list)):
        return [item for item in value if isinstance(item, int) and not isinstance(item, bool)]
    return []
