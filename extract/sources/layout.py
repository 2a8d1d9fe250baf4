"""Where a project has its packages: the folders that its build settings put on `sys.path`, and renamed ones.

Each root is a folder with the package that it becomes on installation, "" for a folder that only holds packages:

    package-dir = {"" = "lib"}                   ("lib", "")
    packages = [{include = "acme", from = "lib"}]    ("lib", "")
    package_dir={"acme": "source"}                 ("source", "acme")

Read for setuptools (pyproject.toml, setup.cfg, setup.py), Poetry, Hatch, Flit, PDM, uv, Maturin and scikit-build. A
project that states nothing may have a folder `src`, which all of them look for.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

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
    for path, package in stated or [("src", "")]:
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


def _list_parents(packages: object) -> Iterable[tuple[str, str]]:
    """Return the folders around packages that are listed by path: `src/acme`."""
    return ((path.rpartition("/")[0], "") for path in strings(packages) if "/" in path.strip("/"))
