"""Where a project has its packages: the folders that its build settings put on `sys.path`, and renamed ones.

Each root is a folder with the package that it becomes on installation, "" for a folder that only holds packages:

    package-dir = {"" = "lib"}                   ("lib", "")
    packages = [{include = "acme", from = "lib"}]    ("lib", "")
    package_dir={"acme": "source"}                 ("source", "acme")
    packages.find.include = ["acme.*"]             ("acme", "acme"), for a namespace: a folder without `__init__.py`

Read for setuptools (pyproject.toml, setup.cfg, literals of setup.py), Poetry, Hatch, Flit, PDM, uv, Maturin and
scikit-build. A project that states nothing may have a folder `src`, which all of them look for.
"""

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from lemur_core.source.text import parse_code

_MAX_CHARACTERS = 200_000

Roots = tuple[tuple[str, str], ...]  # folders, each with the dotted name of its package

# Settings of build tools, below `tool` in pyproject.toml.
_FOLDERS = (
    "setuptools.packages.find.where",
    "hatch.build.targets.wheel.sources",
    "hatch.build.sources",
    "pdm.build.package-dir",
    "maturin.python-source",
    "uv.build-backend.module-root",
)
_RENAMED = (
    "hatch.build.targets.wheel.sources",
    "hatch.build.targets.wheel.force-include",
    "hatch.build.sources",
    "hatch.build.force-include",
)
_LISTED = ("hatch.build.targets.wheel.packages", "hatch.build.packages", "scikit-build.wheel.packages")
_NAMED = ("setuptools.packages", "setuptools.packages.find.include", "flit.module.name", "uv.build-backend.module-name")


def read_setup_script(text: str) -> dict[str, object]:
    """Return the literal keyword arguments of the last call of `setup`: the script is foreign code, and never run.

    A name that is bound once in the script, to a literal, is one.
    """
    try:
        nodes = list(ast.walk(parse_code(text[:_MAX_CHARACTERS])))
    except SyntaxError:  # a foreign file, perhaps of Python 2; ignore it
        return {}
    bound: dict[str, list[ast.expr]] = {}
    for node in nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AugAssign(target=ast.Name(id=name), value=value)
            ):
                bound.setdefault(name, []).append(value)
    arguments: dict[str, object] = {}
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="setup") | ast.Attribute(attr="setup"), keywords=keywords):
                arguments = {}
                for keyword in keywords:
                    value = keyword.value
                    if isinstance(value, ast.Name) and len(bound.get(value.id, ())) == 1:
                        value = bound[value.id][0]
                    with contextlib.suppress(ValueError, TypeError, RecursionError):  # not a literal
                        arguments[str(keyword.arg)] = ast.literal_eval(value)
    return arguments


def find_setting(value: object, *keys: str) -> object:
    """Return what is below these keys of nested tables; None if there is nothing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def table(value: object, *keys: str) -> Mapping[str, object]:
    """Return the table below these keys; an empty one if there is none, or something else."""
    found = find_setting(value, *keys)
    return found if isinstance(found, Mapping) else {}


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
    stated = list(_read_stated(pyproject, config, script)) or [("src", "")]
    namespaces = ((name, name) for name in _list_namespaces(pyproject, config, script))
    folders: dict[str, str] = {}
    for path, package in [*stated, *namespaces]:
        where = "/".join(part for part in PurePosixPath(folder, path).parts if part != ".")
        if ".." not in PurePosixPath(where).parts and (where or package):
            folders.setdefault(where, package.replace("/", "."))
    return tuple(sorted(folders.items()))


def _read_stated(
    pyproject: Mapping[str, object], config: Mapping[str, Mapping[str, str]], script: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    tool = table(pyproject, "tool")
    lines = (line.partition("=") for line in strings(find_setting(config, "options", "package_dir")))
    configured = {name.strip(): path.strip() for name, _, path in lines}
    for renamed in (table(tool, "setuptools", "package-dir"), configured, table(script, "package_dir")):
        yield from ((path, str(package)) for package, path in renamed.items() if isinstance(path, str))
    yield from ((path, "") for path in strings(find_setting(config, "options.packages.find", "where")))
    for entry in _list_poetry(tool):
        below, package = entry.get("from"), entry.get("to")
        if isinstance(below, str):
            yield below, package if isinstance(package, str) else ""
    for setting in _FOLDERS:
        yield from ((path, "") for path in strings(find_setting(tool, *setting.split("."))))
    for setting in _RENAMED:
        for path, package in table(tool, *setting.split(".")).items():
            if isinstance(package, str):
                yield path, package
    for setting in _LISTED:
        for path in strings(find_setting(tool, *setting.split("."))):
            if "/" in path.strip("/"):
                yield path.rpartition("/")[0], ""


def _list_namespaces(
    pyproject: Mapping[str, object], config: Mapping[str, Mapping[str, str]], script: Mapping[str, object]
) -> Iterator[str]:
    """Yield folders of the project that may be namespaces: they lead the name of a package, or are like the project's.

    `acme` of the packages `acme.nets` or `acme*`, and `acme/nets` of the project `acme-nets`.
    """
    tool = table(pyproject, "tool")
    stated = [
        *(find_setting(tool, *setting.split(".")) for setting in _NAMED),
        find_setting(config, "options", "packages"),
        find_setting(config, "options.packages.find", "include"),
        script.get("packages"),
        *(entry.get("include") for entry in _list_poetry(tool) if "from" not in entry),
    ]
    for name in (name for names in stated for name in strings(names)):
        top = re.split(r"[./*]", name)[0]
        if top.isidentifier():
            yield top
    for project in strings([find_setting(pyproject, "project", "name"), find_setting(config, "metadata", "name")]):
        yield re.sub("[-.]", "/", project)


def _list_poetry(tool: Mapping[str, object]) -> list[Mapping[str, object]]:
    entries = find_setting(tool, "poetry", "packages")
    return [table(entry) for entry in entries] if isinstance(entries, list) else []
