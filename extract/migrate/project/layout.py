"""An existing project as it lies: its modules and packages, where what belongs together stands, how its files are
called, where and how it is tested. Told from the text alone; nothing of it is run.
"""

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from extract.model.categories import category_of, snake_of
from extract.resolve.discover import Found, discover
from extract.resolve.index import Index
from extract.resolve.modules import Library
from extract.sources import Source, read_folder, walk
from lemur_core.files.errors import UserError
from lemur_core.source.parse import dotted

_TEST = re.compile(r"(?:test_.+|.+_tests?)\.py")
_TEST_FOLDERS = frozenset({"test", "tests"})
_INIT = "__init__.py"

Naming = Literal["snake", "camel", "joined"]
_NAMINGS: tuple[Naming, ...] = ("snake", "camel", "joined")


@dataclass(frozen=True, slots=True)
class Defined:
    """A class or function that a file of the project defines at its top.

    Attributes:
        module: dotted name under which the project imports the file.
        parameters: names that its call takes: of a class its own constructor's, None where that is inherited.
        forward: names that its own `forward` takes; None where it has none.
        is_module: it is an nn.Module with a forward.
        category: of such a class.
    """

    name: str
    module: str
    path: str
    is_class: bool
    parameters: tuple[str, ...] | None
    forward: tuple[str, ...] | None = None
    is_module: bool = False
    category: str = ""


@dataclass(frozen=True, slots=True)
class Project:
    """What a migration needs to know of a project.

    Attributes:
        source: its files of code, licence and requirements.
        trees: of these files, by path; those that do not parse are left out.
        defined: in the order of paths and lines.
        tests: its test files, parsed, by path.
        paths: of all its Python files, the tests among them.
    """

    root: Path
    source: Source
    trees: Mapping[str, ast.Module]
    defined: Sequence[Defined]
    tests: Mapping[str, ast.Module]
    paths: frozenset[str]
    _modules: Mapping[str, str] = field(default_factory=dict)

    def module_of(self, path: str) -> str:
        """The dotted name of a file that is there, or would be."""
        if path in self._modules:
            return self._modules[path]
        inside = path.removesuffix(".py").removeprefix(f"{self.import_root(path)}/")
        return inside.replace("/", ".")

    def import_root(self, path: str) -> str:
        """The folder, "" for the project's own, from which a file that is there, or would be, is imported."""
        pure = PurePosixPath(path)
        if path in self._modules:
            return self._above(path)
        for folder in (pure.parent, *pure.parent.parents):
            beside = (one for one in sorted(self._modules) if PurePosixPath(one).parent == folder)
            known = next(beside, None)
            if known is not None and (folder.name or pure.parent == folder):
                return self._above(known)
        return ""

    def _above(self, path: str) -> str:
        """The folder from which a file that is there is imported."""
        folders = PurePosixPath(path).parent.parts
        inner = len(self._modules[path].split(".")) - (PurePosixPath(path).name != _INIT)
        return "/".join(folders[: len(folders) - inner])

    @property
    def import_roots(self) -> list[str]:
        """All folders from which its modules are imported, in order."""
        return sorted({self.import_root(path) for path in self._modules})

    @property
    def packages(self) -> frozenset[str]:
        """The first parts of its modules' names."""
        return frozenset(name.partition(".")[0] for name in self._modules.values())


def read_project(root: Path) -> Project:
    """Read a project.

    Raises: UserError if the folder holds no Python code, or is itself a package.
    """
    if (root / _INIT).is_file():
        raise UserError(f"{root}: is a package, not a project; give the folder that it lies in")
    source = read_folder(str(root))
    with Index() as index:
        index.add([(source, file) for file in source.files])
        library = Library([source], index.facts)
        found = discover(library, [library.by_path[source.name, file.path] for file in source.files])
        modules = {
            (one.module.file.path, one.name): category_of(
                one.name, one.qualname, [".".join(b) for b in one.facts.bases]
            )
            for one in found
        }
    trees = {file.path: tree for file in source.files if (tree := _parsed(source.root / file.path)) is not None}
    names = {file.path: file.module for file in source.files}
    paths = sorted(path for path in walk(source.root) if path.endswith(".py"))
    tests = {path: tree for path in paths if _is_test(path) and (tree := _parsed(source.root / path)) is not None}
    defined = [one for path, tree in trees.items() for one in _defined(tree, path, names[path], modules)]
    return Project(source.root, source, trees, defined, tests, frozenset(paths), names)


def _category(one: Found) -> str:
    return category_of(one.name, one.qualname, [".".join(base) for base in one.facts.bases])


def _parsed(path: Path) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _is_test(path: str) -> bool:
    pure = PurePosixPath(path)
    return bool(_TEST.fullmatch(pure.name)) and (
        pure.name.startswith("test_") or bool(_TEST_FOLDERS & set(pure.parts[:-1]))
    )


def _defined(tree: ast.Module, path: str, module: str, modules: Mapping[tuple[str, str], str]) -> Iterator[Defined]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            own = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
            init, forward = own.get("__init__"), own.get("forward")
            yield Defined(
                node.name,
                module,
                path,
                True,
                parameters_of(init, 1) if init else None,
                parameters_of(forward, 1) if forward else None,
                (path, node.name) in modules,
                modules.get((path, node.name), ""),
            )
        elif isinstance(node, ast.FunctionDef):
            yield Defined(node.name, module, path, False, parameters_of(node, 0))


def parameters_of(node: ast.FunctionDef, skipped: int) -> tuple[str, ...]:
    """The names that a function takes.

    Args: skipped: how many at the beginning do not count, as `self`.
    """
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args][skipped:]
    rest = [*named, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return tuple(item.arg for item in rest if item is not None)


# --- where a new module goes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where the new module goes.

    Attributes:
        path: of its file.
        module: dotted name under which it is imported.
        why: in words.
    """

    path: str
    module: str
    why: str

    @property
    def folder(self) -> str:
        """The folder of the file, "" for the project's own."""
        return self.path.rpartition("/")[0]


def choose_place(project: Project, name: str, category: str, out: Path | None = None) -> Place:
    """Where a block goes: into the folder with most modules of its kind, under a name as its neighbours have.

    Args: out: a file to take instead, absolute, or relative to the working folder.
    Raises: UserError if the project has no module to stand beside, or the file is outside of it or cannot be imported.
    """
    if out is not None:
        return _given(project, out)
    kinds: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for one in project.defined:
        if one.is_module:
            folder = one.path.rpartition("/")[0]
            totals[folder] += 1
            kinds[folder] += one.category == category
    if not totals:
        raise UserError(f"{project.root}: has no nn.Module to stand beside; name the file with --out")
    folder = min(totals, key=lambda it: (-kinds[it], -totals[it], it.count("/"), it))
    of_kind = f"{kinds[folder]} of kind {category}" if kinds[folder] else "none of its kind in the project"
    stem = _free_stem(project, folder, _stem(project, folder, name))
    path = f"{folder}/{stem}.py".lstrip("/")
    why = f"{folder or 'the root'} has {totals[folder]} modules, {of_kind}"
    return Place(path, project.module_of(path), why)


def _given(project: Project, out: Path) -> Place:
    try:
        path = out.absolute().resolve().relative_to(project.root).as_posix()
    except ValueError:
        raise UserError(f"{out}: lies outside of {project.root}; name a file inside of it") from None
    if not re.fullmatch(r"(?:[^\W\d]\w*/)*[^\W\d]\w*\.py", path) or path.endswith(_INIT):
        raise UserError(f"{out}: Python cannot import a module of this name; name a new file NAME.py")
    return Place(path, project.module_of(path), "--out")


def _stem(project: Project, folder: str, name: str) -> str:
    """A file's name for a class, in the way in which most of the files nearby are named after a class of theirs."""
    nearby = [path for path in project.trees if path.rpartition("/")[0] == folder]
    for paths in (nearby, list(project.trees)):
        votes = Counter(kind for path in paths if (kind := _naming(path, project)) is not None)
        if votes:
            return _named(name, max(_NAMINGS, key=lambda kind: votes[kind]))
    return _named(name, "snake")


def _naming(path: str, project: Project) -> Naming | None:
    """How a file is named; None where its name is one word, or that of no class in it."""
    stem = PurePosixPath(path).stem.strip("_")
    if "_" in stem:
        return "snake"
    names = {one.name for one in project.defined if one.path == path and one.is_class}
    if stem in names and stem != stem.lower():
        return "camel"
    long = {_named(name, "joined") for name in names if _named(name, "joined") != _named(name, "snake")}
    return "joined" if stem in long else None


def _named(name: str, naming: Naming) -> str:
    if naming == "camel":
        return name
    return snake_of(name) if naming == "snake" else snake_of(name).replace("_", "")


def _free_stem(project: Project, folder: str, stem: str) -> str:
    """The name, or with a number, so that it hides no file, folder, or name that the package has."""
    taken = {PurePosixPath(path).stem for path in project.paths if path.rpartition("/")[0] == folder}
    taken |= {path[len(folder) :].lstrip("/").partition("/")[0] for path in project.paths if path.startswith(folder)}
    taken |= bound_names(project.trees.get(f"{folder}/{_INIT}".lstrip("/")))
    number = 1
    while (found := stem if number == 1 else f"{stem}_{number}") in taken:
        number += 1
    return found


def bound_names(tree: ast.Module | None) -> set[str]:
    """The names that statements of module level bind, but for those of star imports."""
    found: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found - {"*"}


# --- its tests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TestPlace:
    """Where the smoke test goes, and how it is written.

    Attributes:
        path: of its file.
        style: plain functions, or methods of a `unittest.TestCase`.
        beside: how many tests of this style are there already; 0 where the project has none.
    """

    __test__ = False  # pytest need not look

    path: str
    style: Literal["functions", "unittest"]
    beside: int


def choose_test(project: Project, place: Place, replaces: str | None = None) -> TestPlace:
    """The test file for a module: in the folder with most tests of its package, called and written as those are.

    Args: replaces: what the documentation of an older test holds that may be replaced.
    """
    stem = PurePosixPath(place.path).stem
    near: Counter[str] = Counter()
    for path, tree in project.tests.items():
        folder = path.rpartition("/")[0]
        names = _imported(tree)
        package = place.module.rpartition(".")[0]
        near[folder] += 1 + 2 * any(name.startswith(package) for name in names if package)
    folder = min(near, key=lambda it: (-near[it], it)) if near else "tests"
    before = sum(PurePosixPath(path).name.startswith("test_") for path in project.tests) * 2 >= len(project.tests)
    taken = {PurePosixPath(path).name for path in project.paths}
    number = 1
    while True:
        word = stem if number == 1 else f"{stem}_{number}"
        name = f"test_{word}.py" if before else f"{word}_test.py"
        older = project.tests.get(f"{folder}/{name}".lstrip("/"))
        replaceable = older is not None and replaces is not None and replaces in (ast.get_docstring(older) or "")
        if name not in taken or replaceable:
            break
        number += 1
    unittests = sum(_is_unittest(tree) for path, tree in project.tests.items() if path.rpartition("/")[0] == folder)
    there = sum(path.rpartition("/")[0] == folder for path in project.tests)
    is_unittest = unittests * 2 > there
    return TestPlace(
        f"{folder}/{name}".lstrip("/"),
        "unittest" if is_unittest else "functions",
        unittests if is_unittest else there - unittests,
    )


def _imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def _is_unittest(tree: ast.Module) -> bool:
    kinds = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return any(dotted(base)[-1:] == ("TestCase",) for kind in kinds for base in kind.bases)
