"""The quality of a file's code, by LEMUR's score: nothing of it is executed.

1.0 less 0.05 an error, 0.02 a warning, 0.01 a matter of style or of complexity, and never below 0.

LEMUR takes errors, warnings and matters of style from Pylint and complexity from Radon, and so does this. Where Pylint
is not installed or not asked for, Pyflakes finds errors and warnings, and long lines are the only matter of style, so
that the score is higher than LEMUR's by what Pylint has to say beyond that.

Source: `ab/nn/util/CodeEval.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0; McCabe, "A Complexity Measure",
IEEE Transactions on Software Engineering SE-2(4), 1976
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyflakes import messages
from pyflakes.checker import Checker
from radon.complexity import cc_visit_ast

from lemur_core.files.errors import UserError

_COST = {"error": 5, "warning": 2, "convention": 1, "refactor": 1, "complexity": 1}
_LINE_CHARACTERS = 120
_MOST_COMPLEX = 10
_PYLINT_SECONDS = 300
#: Missing docstrings, final newlines, white space at the end of lines, superfluous parentheses: LEMUR does not mind.
_NOT_MINDED = "C0116,C0115,C0114,C0304,C0303,C0305,C0325"
_UNTIDY = (
    messages.UnusedImport,
    messages.UnusedVariable,
    messages.UnusedAnnotation,
    messages.RedefinedWhileUnused,
    messages.ImportShadowedByLoopVar,
    messages.ImportStarUsed,
    messages.ImportStarUsage,
    messages.FStringMissingPlaceholders,
    messages.MultiValueRepeatedKeyLiteral,
    messages.MultiValueRepeatedKeyVariable,
    messages.IsLiteral,
    messages.IfTuple,
    messages.AssertTuple,
)


@dataclass(frozen=True, slots=True)
class Quality:
    """A score in 0..1, how often what was found, and what looked for it."""

    score: float
    found: dict[str, int]
    by: str


def code_quality(code: str, name: str, *, python: str | None = sys.executable) -> Quality:
    """The score of a file that parses; nothing of it is executed.

    Args:
        name: of the network; Pylint has a say on the name of the file.
        python: the interpreter whose Pylint is used, if it has one; None for Pyflakes in any case.

    Raises: UserError if Pylint is there and fails.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the file are not ours
        tree = ast.parse(code)
        by_pylint = _by_pylint(code, name, python) if python is not None else None
        found, by = by_pylint or (_by_pyflakes(code, tree), "pyflakes")
    found["complexity"] = sum(block.complexity > _MOST_COMPLEX for block in cc_visit_ast(tree))
    cost = sum(_COST.get(kind, 0) * count for kind, count in found.items())
    return Quality(max(0, 100 - cost) / 100, {kind: found[kind] for kind in _COST if found[kind]}, by)


def _by_pyflakes(code: str, tree: ast.Module) -> Counter[str]:
    found = Counter("warning" if isinstance(message, _UNTIDY) else "error" for message in Checker(tree).messages)
    found["convention"] = sum(len(line) > _LINE_CHARACTERS for line in code.splitlines())
    return found


def _by_pylint(code: str, name: str, python: str) -> tuple[Counter[str], str] | None:
    """What Pylint finds, and its name and version; None where it is not installed. It reads files, and runs none."""
    with tempfile.TemporaryDirectory(prefix="lemur-quality-") as folder:
        file = Path(folder) / f"{name}.py"
        file.write_text(code, encoding="utf-8", newline="\n")
        empty = Path(folder) / "none.toml"  # else settings of the user's, who may have any, would decide
        empty.touch()
        version = _run([python, "-P", "-c", "import pylint; print(pylint.__version__)"], folder)
        if version.returncode != 0:
            return None
        options = ["--output-format=json", f"--max-line-length={_LINE_CHARACTERS}", f"--disable={_NOT_MINDED}"]
        done = _run([python, "-P", "-m", "pylint", str(file), f"--rcfile={empty}", *options], folder)
    try:
        kinds = [str(finding["type"]) for finding in json.loads(done.stdout or "[]")]
    except (ValueError, TypeError, KeyError) as error:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"{python} -m pylint: gives no JSON: {last}; mend or remove Pylint") from error
    return Counter(kinds), f"pylint {version.stdout.strip()}"


def _run(command: list[str], folder: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYLINTHOME": folder}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_PYLINT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"{command[0]} -m pylint: takes over {_PYLINT_SECONDS} seconds; mend or remove Pylint"
        ) from error
