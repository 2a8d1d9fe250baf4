"""Where a project has its packages: the folders that its build settings put on `sys.path`, and renamed ones.

Each root is a folder with the package that it becomes on installation, "" for a folder that only holds packages:

    package-dir = {"" = "lib"}                   ("lib", "")
    packages = [{include = "acme", from = "lib"}]    ("lib", "")
    package_dir={"acme": "source"}                 ("source", "acme")
    packages.find.include = ["acme.*"]             ("acme", "acme"), for a namespace: a folder without `__init__.py`

Read for setuptools (pyproject.toml, setup.cfg, setup.py), Poetry, Hatch, Flit, PDM, uv, Maturin and scikit-build. A
project that states nothing may have a folder `src`, which all of them look for. Setup scripts are foreign code, and
never run: what only running one would show is left out.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from lemur_core.source.text import parse_code
from lemur_core.source.values import UNKNOWN, Comprehension, Evaluator, call_builtin

_MAX_CHARACTERS = 200_000
#: Methods of a string whose result is not larger than the string.
_OF_TEXT = frozenset({"split", "splitlines", "strip", "rstrip", "lstrip"})
Names = dict[str, object]


def read_setup_script(text: str) -> dict[str, object]:
    """Return the known keyword arguments of the call of `setup`; the last one, if there are several."""
    try:
        tree = parse_code(text[:_MAX_CHARACTERS])
    except SyntaxError:  # a foreign file, perhaps of Python 2; ignore it
        return {}
    script = _SetupScript()
    script.follow(tree.body, {})
    return script.arguments


class _SetupScript(Evaluator[Names]):
    """Follow the statements of a script in order, with all its branches, and the calls of `setup` among them."""

    def __init__(self) -> None:
        self.arguments: dict[str, object] = {}

    def follow(self, body: Iterable[ast.stmt], names: Names) -> None:
        for node in body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    names[name] = self.value(value, names)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    names[name] = self.value(value, names)
                case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                    names[name] = _add(names.get(name, UNKNOWN), self.value(value, names))
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=index)], value=value):
                    holder, key = names.get(name), self.value(index, names)
                    if isinstance(holder, dict) and isinstance(key, str):
                        holder[key] = self.value(value, names)
                case ast.Expr(value=ast.Call() as call):
                    self._follow_call(call, names)
                case ast.FunctionDef():  # `setup` may be called in `main`; its local names are its own
                    self.follow(node.body, dict(names))
                case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try():
                    for part in ("body", "handlers", "orelse", "finalbody"):
                        for inner in getattr(node, part, ()):
                            self.follow(inner.body if isinstance(inner, ast.ExceptHandler) else [inner], names)

    def _follow_call(self, call: ast.Call, names: Names) -> None:
        match call.func:
            case ast.Name(id="setup") | ast.Attribute(attr="setup"):
                arguments: dict[str, object] = {}
                for item in call.keywords:
                    value = self.value(item.value, names)
                    arguments |= {item.arg: value} if item.arg else value if isinstance(value, dict) else {}
                known = {str(key): value for key, value in arguments.items() if value is not UNKNOWN}
                self.arguments = known or self.arguments
            case ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" as method) if len(call.args) == 1:
                value = self.value(call.args[0], names)
                names[name] = _add(names.get(name, UNKNOWN), [value] if method == "append" else value)

    def value(self, node: ast.expr | None, scope: Names) -> object:
        """Return the value of an expression; texts and lists may be long."""
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return self.items(items, scope)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _add(self.value(left, scope), self.value(right, scope))
        return super().value(node, scope)

    def name(self, name: str, scope: Names) -> object:
        return scope.get(name, UNKNOWN)

    def attribute(self, _node: ast.Attribute, _scope: Names) -> object:
        return UNKNOWN

    def call(self, node: ast.Call, scope: Names) -> object:
        args = [self.value(item, scope) for item in node.args]
        match node.func:
            case ast.Name(id="dict") if not args:
                return {item.arg: self.value(item.value, scope) for item in node.keywords if item.arg}
            case ast.Name(id=name):
                return call_builtin(name, args)
            case ast.Attribute(value=holder, attr=method) if method in _OF_TEXT and not node.keywords:
                text = self.value(holder, scope)
                if isinstance(text, str) and all(isinstance(item, str) for item in args[:1]) and len(args) < 2:
                    return getattr(text, method)(*args)
        return UNKNOWN

    def comprehension(self, _node: Comprehension, _scope: Names) -> object:
        return UNKNOWN

    def choose(self, options: Sequence[Callable[[], object]]) -> object:
        """Return the first known value: a script may ask the machine, which has no part in what is stated."""
        return next((value for option in options if (value := option()) is not UNKNOWN), UNKNOWN)


def _add(left: object, right: object) -> object:
    """Return the sum of two texts, or of two lists of which one may be unknown: the rest is stated all the same."""
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    lists = [list(value) for value in (left, right) if isinstance(value, list | tuple)]
    return [item for items in lists for item in items] if lists else UNKNOWN


# --- where a project has its packages ---------------------------------------------------------------------------------


Roots = tuple[tuple[str, str], ...]  # folders, each with the dotted name of its package


def table(value: object, *keys: str) -> Mapping[str, object]:
    """Return the table below these keys; an empty one if there is none, or something else."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def strings(value: object) -> list[str]:
    """Return the texts in a list; a text alone is one of its lines each."""
    if isinstance(value, str):
        return [line.strip() for line in value.splitlines() if line.strip()]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list | tuple) else []


def list_roots(
    folder: str, pyproject: Mapping[str, object], config: Mapping[str, Mapping[str, str]], script: Mapping[str, object]
) -> Roots:
    """Return the roots of one project, as folders relative to the source.

    Args:
        folder: of the project itself, relative to the source; "" for the source.
        pyproject: its pyproject.toml.
        config: its setup.cfg, by section.
        script: what its setup.py passes to `setup`.
    """
    stated = [*_read_setuptools(pyproject, config, script), *_read_tools(pyproject)]
    folders: dict[str, str] = {}
    namespaces = _list_namespaces(pyproject, config, script)
    for path, package in [*(stated or [("src", "")]), *((name, name) for name in namespaces)]:
        where = "/".join(part for part in PurePosixPath(folder, path).parts if part != ".")
        if ".." not in PurePosixPath(where).parts and (where or package):
            folders.setdefault(where, package.replace("/", "."))
    return tuple(sorted(folders.items()))


def _read_setuptools(
    pyproject: Mapping[str, object], config: Mapping[str, Mapping[str, str]], script: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    settings, options = table(pyproject, "tool", "setuptools"), config.get("options", {})
    lines = (line.partition("=") for line in strings(options.get("package_dir")))
    folders = {name.strip(): path.strip() for name, _, path in lines}
    for stated in (table(settings, "package-dir"), folders, table(script, "package_dir")):
        yield from ((path, str(package)) for package, path in stated.items() if isinstance(path, str))
    where = [
        *strings(table(settings, "packages", "find").get("where")),
        *strings(config.get("options.packages.find", {}).get("where")),
    ]
    yield from ((path, "") for path in where)


def _read_tools(pyproject: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    tool = table(pyproject, "tool")
    entries = table(tool, "poetry").get("packages")
    for entry in map(table, entries if isinstance(entries, list) else ()):
        below, renamed = entry.get("from"), entry.get("to")
        if isinstance(below, str):
            yield below, renamed if isinstance(renamed, str) else ""
    build = table(tool, "hatch", "build")
    for settings in (table(build, "targets", "wheel"), build):
        sources = settings.get("sources")
        yield from ((path, "") for path in strings(sources))
        for renamed in (table(sources), table(settings, "force-include")):
            yield from ((path, package) for path, package in renamed.items() if isinstance(package, str))
        yield from _list_parents(settings.get("packages"))
    yield from _list_parents(table(tool, "scikit-build", "wheel").get("packages"))
    single = (
        table(tool, "pdm", "build").get("package-dir"),
        table(tool, "maturin").get("python-source"),
        table(tool, "uv", "build-backend").get("module-root"),
    )
    yield from ((path, "") for path in single if isinstance(path, str) and path)


def _list_namespaces(
    pyproject: Mapping[str, object], config: Mapping[str, Mapping[str, str]], script: Mapping[str, object]
) -> Iterator[str]:
    """Yield folders of the project that may be namespaces: they lead the name of a package, or are like the project's.

    `acme` of the packages `acme.nets` or `acme*`, and `acme/nets` of the project `acme-nets`.
    """
    tool = table(pyproject, "tool")
    settings, entries = table(tool, "setuptools"), table(tool, "poetry").get("packages")
    stated = [
        *strings(settings.get("packages")),
        *strings(table(settings, "packages", "find").get("include")),
        *strings(config.get("options", {}).get("packages")),
        *strings(config.get("options.packages.find", {}).get("include")),
        *strings(script.get("packages")),
        *strings(
            [
                entry.get("include")
                for entry in map(table, entries if isinstance(entries, list) else ())
                if "from" not in entry
            ]
        ),
        *strings([table(tool, "flit", "module").get("name"), table(tool, "uv", "build-backend").get("module-name")]),
    ]
    for name in stated:
        top = re.split(r"[./*]", name)[0]
        if top.isidentifier():
            yield top
    for project in strings([table(pyproject, "project").get("name"), config.get("metadata", {}).get("name")]):
        yield re.sub("[-.]", "/", project)


def _list_parents(packages: object) -> Iterable[tuple[str, str]]:
    """Return the folders around packages that are listed by path: `src/acme`."""
    return ((path.rpartition("/")[0], "") for path in strings(packages) if "/" in path.strip("/"))
