"""One judgment for the output of both tools: nothing that a tool says about its own files is used.

A file is closed when it runs in a clean process, the class that was asked for is there and is an nn.Module, pyflakes
finds no undefined name in it, and it imports no package of the corpus (torch and torchvision, which every block may
import, aside). Beyond that: every method of the class has as many decorators as in one of the sources.

Both tools' files run in the same sandbox: this interpreter, and what our blocks declare that they require.
"""

import ast
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyflakes.checker import Checker
from pyflakes.messages import UndefinedName

from extract.sources import PackageSource
from lemur_core.sandbox import Job, Limits, Sandbox, Status

_ENTRY = "benchmarks.nnrag_probe:look"
_LIMITS = Limits(wall_seconds=60, cpu_seconds=60)
_SHARED = frozenset({"numpy", "torch", "torchvision"})

Outline = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Originals:
    """What the sources say of the names that are asked for.

    Attributes:
        packages: the top-level modules of all sources; a closed file imports none of them.
        outlines: by class name, the methods with their numbers of decorators, of every class of that name in scope.
    """

    packages: frozenset[str]
    outlines: Mapping[str, frozenset[Outline]]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is true of one file."""

    runs: bool
    is_class: bool
    is_module: bool
    undefined: tuple[str, ...]
    foreign: tuple[str, ...]  # packages of the corpus that it imports
    decorators_kept: bool
    error: str

    @property
    def closed(self) -> bool:
        """Whether it runs alone and gives the class."""
        return self.is_module and not self.undefined and not self.foreign


def read_originals(sources: Sequence[PackageSource], names: Iterable[str]) -> Originals:
    """Look the names up in the sources, by their text."""
    packages = {file.module.partition(".")[0] for source in sources for file in source.files}
    wanted = set(names)
    outlines: dict[str, set[Outline]] = {}
    for source in sources:
        for file in source.files:
            if not source.in_scope(file.path):
                continue
            text = (source.root / file.path).read_text(encoding="utf-8", errors="replace")
            if wanted.isdisjoint(re.findall(r"^\s*class\s+(\w+)", text, re.MULTILINE)):
                continue
            for node in _classes(text):
                if node.name in wanted:
                    outlines.setdefault(node.name, set()).add(_outline(node))
    frozen = {name: frozenset(found) for name, found in outlines.items()}
    return Originals(frozenset(packages - _SHARED - sys.stdlib_module_names), frozen)


def judge(codes: Mapping[str, str], originals: Originals, folder: Path | None, workers: int) -> dict[str, Judgement]:
    """Judge files by the name of the class that each was made for.

    Args: folder: what may be imported besides the interpreter's own packages.
    Raises: UserError if no sandbox can be had.
    """
    readable = [] if folder is None else [folder]

    def jobs() -> Iterator[Job]:
        for name, code in codes.items():
            yield Job(name, _ENTRY, {"code": code, "name": name, "folder": str(folder or "")}, _LIMITS)

    judged = {}
    with Sandbox(entries=[_ENTRY], readable=readable, workers=workers) as box:
        for outcome in box.run(jobs()):
            seen = outcome.value if outcome.status is Status.OK and isinstance(outcome.value, dict) else {}
            code = codes[outcome.key]
            judged[outcome.key] = Judgement(
                runs=bool(seen),
                is_class=seen.get("class") is True,
                is_module=seen.get("module") is True,
                undefined=undefined_names(code),
                foreign=foreign_imports(code, originals.packages),
                decorators_kept=_keeps_decorators(code, outcome.key, originals),
                error=f"{outcome.status}: {outcome.error}" if not seen else "",
            )
    return judged


def undefined_names(code: str) -> tuple[str, ...]:
    """Undefined names by pyflakes; a file that does not parse has one."""
    tree = _parse(code)
    if tree is None:
        return ("(does not parse)",)
    messages = Checker(tree).messages
    return tuple(sorted({str(m.message_args[0]) for m in messages if isinstance(m, UndefinedName)}))


def foreign_imports(code: str, packages: frozenset[str]) -> tuple[str, ...]:
    """Packages of the corpus that a file imports, anywhere in it; a relative import is one."""
    found: set[str] = set()
    for node in ast.walk(_parse(code) or ast.Module([], [])):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0] if node.level == 0 else ".")
    return tuple(sorted(found & (packages | {"."})))


def _keeps_decorators(code: str, name: str, originals: Originals) -> bool:
    found = [node for node in _classes(code) if node.name == name]
    return bool(found) and _outline(found[-1]) in originals.outlines.get(name, frozenset())


def _classes(code: str) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(_parse(code) or ast.Module([], [])) if isinstance(node, ast.ClassDef))


def _outline(node: ast.ClassDef) -> Outline:
    methods = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
    return tuple((method.name, len(method.decorator_list)) for method in methods)


def _parse(code: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes in foreign strings
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError):
            return None
