"""Layout of an existing project: its modules and packages, where related code is, how files are named, and its tests.

Everything is read from the text; no code of the project is run.
"""

import ast
import copy
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from extract.model.categories import find_category, to_snake_case
from extract.resolve.discover import discover
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex
from extract.sources import PackageSource, read_folder, walk
from lemur_core.files.errors import UserError
from lemur_core.source.parse import split_dotted_name
from lemur_core.source.text import parse_code

_INIT = "__init__.py"


def folder_of(path: str) -> str:
    """Return the folder of a file; "" for the project root."""
    return path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class ProjectDefinition:
    """A top-level class or function of a file of the project."""

    name: str
    module: str  # dotted name under which the project imports the file
    path: str
    is_class: bool  # whether it is a class
    category: str = ""  # category of an nn.Module with a forward; "" for anything else

    @property
    def full_name(self) -> str:
        """Its full name."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Project:
    """The facts about a project that a migration needs."""

    root: Path
    source: PackageSource  # its code files, license and requirements
    trees: Mapping[str, ast.Module]  # path -> syntax tree of a code file; files that do not parse are left out
    defined: Sequence[ProjectDefinition]  # its definitions, in the order of paths and lines
    tests: Mapping[str, ast.Module]  # path -> syntax tree of a test file
    paths: frozenset[str]  # paths of all its Python files, including tests
    _modules: Mapping[str, str] = field(default_factory=dict)

    def name_module(self, path: str) -> str:
        """Return the dotted name of an existing or new file."""
        if path in self._modules:
            return self._modules[path]
        return path.removesuffix(".py").removeprefix(f"{self.import_root(path)}/").replace("/", ".")

    def import_root(self, path: str) -> str:
        """Return the folder from which an existing or new file is imported; "" for the project root."""
        for folder in PurePosixPath(path).parents:
            known = next((path for path in self._modules if PurePosixPath(path).parent == folder), None)
            if known is not None:
                inner = len(self._modules[known].split(".")) - (PurePosixPath(known).name != _INIT)
                return "/".join(folder.parts[: len(folder.parts) - inner])
        return ""

    @property
    def import_roots(self) -> list[str]:
        """All folders from which its modules are imported, sorted."""
        return sorted({self.import_root(path) for path in self._modules})

    @property
    def packages(self) -> frozenset[str]:
        """Top-level names of its modules."""
        return frozenset(name.partition(".")[0] for name in self._modules.values())


def read_project(root: Path) -> Project:
    """Read a project.

    Raises: UserError if the folder contains no Python code, or is itself a package.
    """
    if (root / _INIT).is_file():
        raise UserError(f"{root}: is a package, not a project; give the folder that contains it")
    source = read_folder(str(root))
    with FactsIndex() as index:
        index.add([(source, file) for file in source.files])
        library = CorpusIndex([source], index.facts)
        classes = discover(library, [library.by_path[source.name, file.path] for file in source.files])
        categories = {}
        for item in classes:
            bases = [".".join(base) for base in item.facts.bases]
            categories[item.module.file.path, item.name] = find_category(item.name, item.qualname, bases)
    trees = {file.path: tree for file in source.files if (tree := _parse(source.root / file.path)) is not None}
    names = {file.path: file.module for file in source.files}
    paths = sorted(path for path in walk(source.root) if path.endswith(".py"))
    tests = {path: tree for path in paths if _is_test(path) and (tree := _parse(source.root / path)) is not None}
    defined = [
        ProjectDefinition(
            node.name, names[path], path, isinstance(node, ast.ClassDef), categories.get((path, node.name), "")
        )
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]
    return Project(source.root, source, trees, defined, tests, frozenset(paths), names)


def _parse(path: Path) -> ast.Module | None:
    try:
        return parse_code(path.read_bytes())
    except (OSError, SyntaxError):
        return None


def find_same_class(project: Project, name: str, code: str, other_than: str) -> ProjectDefinition | None:
    """Return the class of a project that has the same text as one of a file, apart from docstrings and annotations.

    Args: other_than: path of a file that does not count.
    """

    def list_texts(tree: ast.Module) -> list[str]:
        return [_dump_plain(node) for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]

    (text,) = list_texts(parse_code(code))[-1:]
    same = (
        item
        for item in project.defined
        if item.name == name and item.path != other_than and text in list_texts(project.trees[item.path])[-1:]
    )
    return next(same, None)


def _dump_plain(definition: ast.ClassDef) -> str:
    definition = copy.deepcopy(definition)
    for node in ast.walk(definition):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            has_docstring = ast.get_docstring(node, clean=False) is not None
            node.body = node.body[has_docstring:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.dump(definition)


def _is_test(path: str) -> bool:
    pure = PurePosixPath(path)
    inside = bool({"test", "tests"} & set(pure.parts[:-1]))
    return pure.match("test_?*.py") or (inside and (pure.match("?*_test.py") or pure.match("?*_tests.py")))


# --- location of a new module -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModuleLocation:
    """Location of the new module."""

    path: str  # path of its file
    module: str  # dotted name under which it is imported
    why: str  # explanation for the user

    @property
    def folder(self) -> str:
        """The folder of the file; "" for the project root."""
        return folder_of(self.path)


def choose_place(project: Project, name: str, category: str, out: Path | None = None) -> ModuleLocation:
    """Choose the folder with most modules of the same kind, and a file name in the style of its neighbors.

    Args: out: file to use instead, absolute or relative to the working folder.
    Raises: UserError if the project has no module, or the file is outside the project or cannot be imported.
    """
    if out is not None:
        return _place_at(project, out)
    kinds: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for definition in project.defined:
        if definition.category:
            folder = folder_of(definition.path)
            totals[folder] += 1
            kinds[folder] += definition.category == category
    if not totals:
        raise UserError(f"{project.root}: has no nn.Module to place the block next to; name the file with --out")
    folder = min(totals, key=lambda it: (-kinds[it], -totals[it], it.count("/"), it))
    of_kind = f"{kinds[folder]} of kind {category}" if kinds[folder] else "none of its kind in the project"
    stem = _free_stem(project, folder, _choose_stem(project, folder, name))
    path = f"{folder}/{stem}.py".lstrip("/")
    why = f"{folder or 'the root'} has {totals[folder]} modules, {of_kind}"
    return ModuleLocation(path, project.name_module(path), why)


def _place_at(project: Project, out: Path) -> ModuleLocation:
    try:
        path = out.absolute().resolve().relative_to(project.root).as_posix()
    except ValueError:
        raise UserError(f"{out}: lies outside of {project.root}; name a file inside of it") from None
    if not re.fullmatch(r"(?:[^\W\d]\w*/)*[^\W\d]\w*\.py", path) or path.endswith(_INIT):
        raise UserError(f"{out}: Python cannot import a module of this name; name a new file NAME.py")
    return ModuleLocation(path, project.name_module(path), "--out")


def _choose_stem(project: Project, folder: str, name: str) -> str:
    """Return a file name for a class, in the naming style of most files nearby, else of the project's."""
    nearby = [path for path in project.trees if folder_of(path) == folder]
    for paths in (nearby, list(project.trees)):
        votes = Counter(style for path in paths if (style := _find_style(path, project)))
        if votes:
            return _format_stems(name)[max(_format_stems(name), key=lambda style: votes[style])]
    return to_snake_case(name)


def _find_style(path: str, project: Project) -> str:
    """Return the naming style of a file; "" if its name is a single word or does not match a class in it."""
    stem = PurePosixPath(path).stem.strip("_")
    # `conv_block` and `convblock` differ only in names of several words; single words show nothing.
    if "_" in stem:
        return "snake"
    for definition in project.defined:
        if definition.path == path and definition.is_class:
            stems = _format_stems(definition.name)
            if stem in (stems["camel"], stems["joined"]) and stems["snake"] != stem:
                return "camel" if stem == stems["camel"] else "joined"
    return ""


def _format_stems(name: str) -> dict[str, str]:
    """Return naming style -> the file name for a class."""
    snake = to_snake_case(name)
    return {"snake": snake, "camel": name, "joined": snake.replace("_", "")}


def _free_stem(project: Project, folder: str, stem: str) -> str:
    """Return the name, with a number if it would hide a file, a folder, or a name of the package."""
    inside = (
        PurePosixPath(path).relative_to(folder) for path in project.paths if path.startswith(f"{folder}/".lstrip("/"))
    )
    taken = {path.parts[0].removesuffix(".py") for path in inside}
    # `from .drop import drop` in the package would hide a module named `drop`.
    taken |= list_bound_names(project.trees.get(f"{folder}/{_INIT}".lstrip("/")))
    return next(candidate for candidate in _numbered(stem) if candidate not in taken)


def _numbered(stem: str) -> Iterator[str]:
    """Yield a name, then the name with 2, 3, ..."""
    yield stem
    yield from (f"{stem}_{number}" for number in itertools.count(2))


def list_bound_names(tree: ast.Module | None) -> set[str]:
    """Return the names that module-level statements bind, except those of star imports."""
    names: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names - {"*"}


# --- its tests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TestPlace:
    """Location and style of the smoke test."""

    __test__ = False  # tells pytest that this is not a test class

    path: str  # path of its file
    style: Literal["functions", "unittest"]  # plain functions, or methods of a `unittest.TestCase`
    neighbors: int  # number of existing tests of this style in the folder; 0 if the project has none


def choose_test(project: Project, location: ModuleLocation, replaces: str | None = None) -> TestPlace:
    """Choose the test file for a module: in the folder with most tests of its package, in their style.

    Args: replaces: text in the docstring of an older test that may be replaced.
    """
    package = location.module.rpartition(".")[0]
    near: Counter[str] = Counter()
    for path, tree in project.tests.items():
        names = _list_imported_modules(tree)
        # Tests of the same package count three times as much as others in the folder.
        near[folder_of(path)] += 1 + 2 * any(name.startswith(package) for name in names if package)
    folder = min(near, key=lambda it: (-near[it], it)) if near else "tests"
    # pytest collects both `test_x.py` and `x_test.py`: follow the majority.
    before = sum(PurePosixPath(path).name.startswith("test_") for path in project.tests) * 2 >= len(project.tests)
    taken = {PurePosixPath(path).name for path in project.paths}

    def is_free(path: str) -> bool:
        older = project.tests.get(path)
        replaceable = older is not None and replaces is not None and replaces in (ast.get_docstring(older) or "")
        return PurePosixPath(path).name not in taken or replaceable

    stems = _numbered(PurePosixPath(location.path).stem)
    paths = (f"{folder}/test_{stem}.py" if before else f"{folder}/{stem}_test.py" for stem in stems)
    path = next(path for path in (path.lstrip("/") for path in paths) if is_free(path))
    neighbors = [_is_unittest(tree) for path, tree in project.tests.items() if folder_of(path) == folder]
    is_unittest = sum(neighbors) * 2 > len(neighbors)
    return TestPlace(path, "unittest" if is_unittest else "functions", neighbors.count(is_unittest))


def _list_imported_modules(tree: ast.Module) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


def _is_unittest(tree: ast.Module) -> bool:
    kinds = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return any(split_dotted_name(base)[-1:] == ("TestCase",) for kind in kinds for base in kind.bases)
