"""Small corpora written as text, their blocks, and the behavior of the original."""

import ast
import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyflakes import messages
from pyflakes.checker import Checker

from extract.emit.emit import Emitted, Emitter, Unresolved
from extract.resolve.discover import TargetClass, discover
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex
from extract.sources import PackageSource, open_source

_UNDEFINED = (messages.UndefinedName, messages.UndefinedLocal, messages.UndefinedExport, messages.ImportStarUsed)


def split_files(text: str) -> dict[str, str]:
    """Return the files in a text, each after a line `--- path`."""
    files: dict[str, str] = {}
    path = ""
    for line in textwrap.dedent(text).lstrip("\n").splitlines(keepends=True):
        if line.startswith("--- "):
            path = line.removeprefix("--- ").strip()
            files[path] = ""
        else:
            files[path] += line
    return files


@dataclass
class Corpus:
    """A few files, opened as sources."""

    folder: Path
    sources: list[PackageSource]
    index: FactsIndex
    reverse: bool = False
    library: CorpusIndex = field(init=False)
    found: list[TargetClass] = field(init=False)

    def __post_init__(self) -> None:
        self.library = CorpusIndex(self.sources, self.index.facts)
        modules = [self.library.by_path[s.name, f.path] for s in self.sources for f in s.files]
        self.found = discover(self.library, reversed(modules) if self.reverse else modules)

    def emitter(self) -> Emitter:
        return Emitter(self.library, self.index)

    def emit(self, name: str) -> Emitted | Unresolved:
        """Return the outcome for the class of that name, bare or qualified."""
        (found,) = [f for f in self.found if name in {f.name, f.qualname}]
        return self.emitter().emit(found)

    def blocks(self) -> dict[str, Emitted | Unresolved]:
        emitter = self.emitter()
        return {found.qualname: emitter.emit(found) for found in self.found}

    def names(self) -> list[str]:
        return [found.qualname for found in self.found]


MakeCorpus = Callable[..., Corpus]


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FactsIndex]:
    with FactsIndex(tmp_path_factory.mktemp("index") / "facts.sqlite") as opened:
        yield opened


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, index: FactsIndex) -> MakeCorpus:
    """Writes files and opens them: as one source, or each top-level folder as a source of its own (`apart`).

    Top-level folders are packages, unless `bare`. `sources` are taken as they are.
    """
    numbers = itertools.count()

    def make(
        files: str | Mapping[str, str],
        *,
        apart: bool = False,
        reverse: bool = False,
        bare: bool = False,
        sources: list[PackageSource] | None = None,
    ) -> Corpus:
        folder = tmp_path_factory.mktemp(f"corpus{next(numbers)}") / "src"
        given = split_files(files) if isinstance(files, str) else dict(files)
        for path in [p for p in given if "/" in p and not bare]:
            given.setdefault(f"{path.split('/')[0]}/__init__.py", "")
        for path, text in given.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8", newline="")
        if sources is not None:
            index.add([(source, file) for source in sources for file in source.files])
            return Corpus(folder, sources, index)
        roots = sorted({folder / path.split("/")[0] for path in given}) if apart else [folder]
        return Corpus(folder, [open_source(f"{root}/") for root in roots], index, reverse)

    return make


def imports_of(code: str) -> set[str]:
    """Return the modules that a file imports anywhere; relative ones begin with dots."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def undefined(code: str) -> list[str]:
    """Return pyflakes' messages about undefined names."""
    return [str(m) for m in Checker(ast.parse(code)).messages if isinstance(m, _UNDEFINED)]


def check_closed(outcome: Emitted | Unresolved, allowed: frozenset[str] = frozenset()) -> str:
    """Return the code of a block after checking that it is closed: it parses, defines what it reads, no origin."""
    assert isinstance(outcome, Emitted), f"{outcome.reason}: {outcome.detail}"
    compile(outcome.code, "block.py", "exec", dont_inherit=True)
    assert undefined(outcome.code) == []
    assert outcome.undefined == ()
    known = sys.stdlib_module_names | {"torch", "torchvision", "numpy"}
    foreign = {name for name in imports_of(outcome.code) if name.split(".")[0] not in known | allowed}
    assert foreign == set()
    assert not known & outcome.packages.keys()
    return outcome.code


@pytest.fixture(scope="session")
def closed() -> Callable[..., str]:
    return check_closed


def run_block(code: str) -> dict[str, Any]:
    """Return the names in a block's file after executing it."""
    module = sys.modules["block"] = ModuleType("block")
    exec(compile(code, "block.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


@pytest.fixture(scope="session")
def run() -> Callable[[str], dict[str, Any]]:
    return run_block


@contextmanager
def import_original(corpus: Corpus, module: str) -> Iterator[dict[str, Any]]:
    """Return the names of a module of the corpus, imported by Python from its folder."""
    before = set(sys.modules)
    sys.path.insert(0, str(corpus.folder))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(module).__dict__
    finally:
        sys.path.remove(str(corpus.folder))
        tops = {path.stem for path in corpus.folder.iterdir()}
        for name in set(sys.modules) - before:
            if name.split(".")[0] in tops:
                del sys.modules[name]


@pytest.fixture(scope="session")
def original() -> Callable[..., Any]:
    return import_original


@pytest.fixture(scope="session")
def behaves(corpus: MakeCorpus) -> Callable[..., str]:
    """Check that an expression has the expected value in the original module and in the block; return its code."""

    def check(files: str, expression: str, expected: object, name: str = "A", **options: bool) -> str:
        made = corpus(files, **options)
        (found,) = [f for f in made.found if name in {f.name, f.qualname}]
        with import_original(made, found.module.name) as names:
            assert eval(expression, names) == expected, "the case itself is wrong"
        code = check_closed(made.emit(name))
        assert eval(expression, run_block(code)) == expected
        return code

    return check
