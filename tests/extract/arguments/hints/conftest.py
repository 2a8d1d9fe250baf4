"""Hints for classes of small corpora that are written as text."""

import itertools
import textwrap
from collections.abc import Callable, Iterator

import pytest

from extract.arguments.hints import HintFinder, Hints
from extract.emit.emit import Emitter
from extract.resolve.discover import TargetClass, discover
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex
from extract.sources import open_source

HintsFor = Callable[..., Hints]
FinderFor = Callable[..., tuple[HintFinder, TargetClass]]


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FactsIndex]:
    with FactsIndex(tmp_path_factory.mktemp("index") / "facts.sqlite") as opened:
        yield opened


@pytest.fixture(scope="session")
def hints_for(finder_for: FinderFor) -> HintsFor:
    """The hints for the class of that name in the package `p`, whose files are given by name."""

    def make(name: str, **files: str) -> Hints:
        finder, found = finder_for(name, **files)
        return finder.hints_for(found)

    return make


@pytest.fixture(scope="session")
def finder_for(tmp_path_factory: pytest.TempPathFactory, index: FactsIndex) -> FinderFor:
    numbers = itertools.count()

    def make(name: str, **files: str) -> tuple[HintFinder, TargetClass]:
        folder = tmp_path_factory.mktemp(f"hints{next(numbers)}") / "src"
        (folder / "p").mkdir(parents=True)
        (folder / "p" / "__init__.py").touch()
        for stem, text in files.items():
            (folder / "p" / f"{stem}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        source = open_source(f"{folder}/")
        library = CorpusIndex([source], index.facts)
        modules = [library.by_path[source.name, file.path] for file in source.files]
        (found,) = [item for item in discover(library, modules) if item.name == name]
        emitter = Emitter(library, index)
        return HintFinder(library, index, emitter), found

    return make
