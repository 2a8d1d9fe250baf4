"""Faults of a file, by its text alone: names that it reads and does not define, and its quality by LEMUR's score.

The score is 1.0 minus 0.05 per error, 0.02 per warning, and 0.01 per finding of style or complexity; at least 0.

Like LEMUR, this takes errors, warnings and style from Pylint, and complexity from Radon. If Pylint is not installed or
not requested, errors and warnings come from Pyflakes, and long lines are the only style finding, so the score is higher
than LEMUR's by Pylint's other findings.

Source: `ab/nn/util/CodeEval.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0; McCabe, "A Complexity Measure",
IEEE Transactions on Software Engineering SE-2(4), 1976
"""

import ast
import json
import os
import subprocess
import symtable
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyflakes import messages
from pyflakes.checker import Checker
from radon.complexity import cc_visit_ast

from lemur_core.files.atomic import scratch_folder
from lemur_core.files.errors import UserError

_COST = {"error": 5, "warning": 2, "convention": 1, "refactor": 1, "complexity": 1}
_LINE_CHARACTERS = 120
_MOST_COMPLEX = 10
_PYLINT_SECONDS = 300
#: Missing docstrings, final newlines, white space at the end of lines, superfluous parentheses: LEMUR ignores them.
_IGNORED = "C0116,C0115,C0114,C0304,C0303,C0305,C0325"
#: Findings of Pyflakes that are warnings; the others are errors.
_UNTIDY = frozenset(
    """
    UnusedImport UnusedVariable UnusedAnnotation RedefinedWhileUnused ImportShadowedByLoopVar ImportStarUsed
    ImportStarUsage FStringMissingPlaceholders MultiValueRepeatedKeyLiteral MultiValueRepeatedKeyVariable IsLiteral
    IfTuple AssertTuple
    """.split()  # noqa: SIM905 (one line for each says no more)
)


@dataclass(frozen=True, slots=True)
class Quality:
    """A score in 0..1, the number of findings of each kind, and the tool."""

    score: float
    findings: dict[str, int]
    by: str

    @property
    def owner(self) -> str:
        """Whose score it is: LEMUR's, by the tool that it uses, or ours."""
        if self.by.startswith("pylint"):
            return f"{self.by}, as LEMUR computes it"
        return f"{self.by}; LEMUR's is by Pylint, which is not installed here, and usually lower"


def code_quality(code: str, name: str, *, python: str | None = sys.executable) -> Quality:
    """Return the quality of a file that parses; nothing is executed.

    Args:
        name: the name of the network; Pylint also checks the file name.
        python: the interpreter whose Pylint is used, if it has one; None to always use Pyflakes.
    Returns: 1 minus a hundredth per point of cost, at least 0, with the number of findings of each kind.
    Raises: UserError if Pylint is installed and fails.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the file
        tree = ast.parse(code)
        by_pylint = _check_with_pylint(code, name, python) if python is not None else None
        if by_pylint is not None:
            counts, by = by_pylint
        else:
            kinds = (type(message).__name__ for message in Checker(tree).messages)
            counts, by = Counter("warning" if kind in _UNTIDY else "error" for kind in kinds), "pyflakes"
            counts["convention"] = sum(len(line) > _LINE_CHARACTERS for line in code.splitlines())
    counts["complexity"] = sum(block.complexity > _MOST_COMPLEX for block in cc_visit_ast(tree))
    cost = sum(_COST.get(kind, 0) * count for kind, count in counts.items())
    return Quality(max(0, 100 - cost) / 100, {kind: counts[kind] for kind in _COST if counts[kind]}, by)


def _check_with_pylint(code: str, name: str, python: str) -> tuple[Counter[str], str] | None:
    """Return Pylint's findings, and its name and version; None if it is not installed. It only reads files."""
    with scratch_folder("quality") as folder:
        file = folder / f"{name}.py"
        file.write_text(code, encoding="utf-8", newline="\n")
        empty = folder / "none.toml"  # otherwise the user's own settings would apply
        empty.touch()
        version = _run([python, "-P", "-c", "import pylint; print(pylint.__version__)"], folder)
        if version.returncode != 0:
            return None
        options = ["--output-format=json", f"--max-line-length={_LINE_CHARACTERS}", f"--disable={_IGNORED}"]
        done = _run([python, "-P", "-m", "pylint", str(file), f"--rcfile={empty}", *options], folder)
    try:
        kinds = [str(finding["type"]) for finding in json.loads(done.stdout or "[]")]
    except (ValueError, TypeError, KeyError) as error:
        last = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise UserError(f"{python} -m pylint: returned no JSON: {last}; repair or remove Pylint") from error
    return Counter(kinds), f"pylint {version.stdout.strip()}"


def _run(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYLINTHOME": str(folder)}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_PYLINT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"{command[0]} -m pylint: takes over {_PYLINT_SECONDS} seconds; repair or remove Pylint"
        ) from error


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

    A function's own name that is read before it is bound is a fault of its author, and nothing that a file lacks.

    Args: tree: the tree of a whole module.
    Returns: by name, where it is used first and pyflakes' message: `line 3: undefined name 'x'`.
    """
    lines: dict[str, str] = {}
    for item in Checker(tree, filename="block.py").messages:
        if isinstance(item, _KINDS):
            lines.setdefault(str(item.message_args[0]), f"line {item.lineno}: {item.message % item.message_args}")
    if not lines:
        return lines
    own = _list_local_names(symtable.symtable(ast.unparse(tree), "block.py", "exec"))
    return {name: line for name, line in lines.items() if name not in own}


def _list_local_names(module: symtable.SymbolTable) -> set[str]:
    """Return the names that functions and comprehensions bind themselves and that nothing looks up outside of them."""
    local, outside, tables = set[str](), set[str](), [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            kept = table.get_type() == "function" and not symbol.is_global()
            (local if kept else outside).add(symbol.get_name())
    return local - outside
