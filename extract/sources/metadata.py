"""Name, version, license, requirements and layout of a project, as its texts state them; nothing is executed.

Read are METADATA and PKG-INFO of releases, pyproject.toml, setup.cfg, literals of setup.py, requirement files and
license texts; of the projects in a repository of several, their build settings, too.

The roots of a project are its folders for `sys.path`, and folders that become a package on installation:

    package-dir = {"" = "lib"}                       ("lib", "")
    packages = [{include = "acme", from = "lib"}]    ("lib", "")
    package_dir={"acme": "source"}                   ("source", "acme")

A project that states nothing may have a folder `src`, for which all build tools look.
"""

import ast
import configparser
import contextlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from lemur_core.files.foreign import decode_python
from lemur_core.source.text import parse_code
from manifests.provenance.licenses import NOASSERTION, find_license, license_of_fields

_LICENSE_NAME = re.compile(r"(?i)(?:(?:un)?licen[sc]e|copying)(?:[._-](?!py$)[a-z0-9.-]+)?")
_REQUIREMENT_FILES = ("requirements/runtime.txt", "requirements.txt")
_SETTINGS = ("pyproject.toml", "setup.cfg", "setup.py")
_MAX_TEXT_BYTES, _MAX_SCRIPT = 4 << 20, 200_000
_DEEPEST = 4  # folders above a project in a repository of several
#: Folders whose projects are not the source's own: their packages are in the way of nothing there.
_NOT_OWN = frozenset({"test", "tests", "docs", "doc", "examples", "example", "benchmarks", "node_modules"})

Roots = tuple[tuple[str, str], ...]  # folders, each with the dotted name of its package, or ""


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """Facts of a project; name and version are "" if no metadata states them."""

    name: str
    version: str
    license: str
    requires: tuple[str, ...]  # requirements, PEP 508; those of extras have a marker
    roots: Roots = ()  # where its packages are


def is_text(path: str) -> bool:
    """Return whether `read_facts` can use a file of this path, relative to the root of a source."""
    parts = PurePosixPath(path).parts
    name = parts[-1]
    if len(parts) == 1:
        return bool(_LICENSE_NAME.fullmatch(name)) or name in ("PKG-INFO", "requirements.txt", *_SETTINGS)
    if parts[0].endswith(".dist-info"):
        return name == "METADATA" or bool(_LICENSE_NAME.fullmatch(name))
    if name in _SETTINGS:
        return len(parts) <= _DEEPEST and not any(part in _NOT_OWN or part.startswith(".") for part in parts)
    required = path in _REQUIREMENT_FILES or (parts[-2].endswith(".egg-info") and name == "requires.txt")
    return required or _is_in_licenses(path)


def read_facts(texts: Mapping[str, bytes]) -> PackageFacts:
    """Return the facts of a project, each from the most reliable text that states it."""
    decoded = {path: _decode(path, data[:_MAX_TEXT_BYTES]) for path, data in sorted(texts.items())}
    projects = sorted({path.rpartition("/")[0] for path in decoded if PurePosixPath(path).name in _SETTINGS})
    installed = any(".dist-info/" in path for path in decoded)  # the settings of its build mean nothing there
    settings = {} if installed else {folder: _Settings.read(folder, decoded) for folder in projects}
    own = settings.get("", _Settings())
    header = next((text for path, text in decoded.items() if PurePosixPath(path).name in ("METADATA", "PKG-INFO")), "")
    fields, _ = parse_email(header)
    # Metadata of the release first: the project file only says how to build one.
    stated = _find_stated(fields.get("license_expression"), fields.get("license"), fields.get("classifiers"))
    if stated == NOASSERTION:
        project, licensed = own.project, own.project.get("license")
        stated = _find_stated(licensed, _table(licensed).get("text"), project.get("classifiers"))
    licenses = [text for path, text in decoded.items() if _is_license(path, own.project)]
    requires = tuple(fields.get("requires_dist", ())) or tuple(_list_requires(settings, decoded))
    # A wheel is laid out as it is installed.
    roots = (("", ""),) if installed else tuple(root for item in settings.values() for root in item.roots())
    return PackageFacts(
        fields.get("name", ""), fields.get("version", ""), find_license(stated, licenses), requires, roots
    )


def _list_requires(settings: Mapping[str, "_Settings"], texts: Mapping[str, str]) -> Iterator[str]:
    """Yield what the projects of a repository require, but for each other; the source itself first."""
    lines = _list_required(settings.get("", _Settings()), texts)
    lines += [line for folder, item in settings.items() if folder for line in item.requires() or ()]
    names = {item.name for item in settings.values()}
    for text in dict.fromkeys(_parse_lines(lines)):
        if canonicalize_name(Requirement(text).name) not in names:
            yield text


# --- licenses ---------------------------------------------------------------------------------------------------------


def _find_stated(expression: object, text: object, classifiers: object) -> str:
    """Return the license that fields state: an SPDX expression (PEP 639), else a text, else classifiers."""
    named = [name.removeprefix("License ::").strip() for name in _strings(classifiers) if name.startswith("License ::")]
    first, second = (field if isinstance(field, str) else "" for field in (expression, text))
    return license_of_fields(first, second, named)


def _decode(path: str, data: bytes) -> str:
    try:
        return decode_python(data) if path.endswith(".py") else data.decode("utf-8", "replace")
    except SyntaxError:
        return ""


def _is_license(path: str, project: Mapping[str, object]) -> bool:
    """Return whether a text is a license of the project: one listed in `license-files`, else one with a usual name."""
    listed, license_field = project.get("license-files"), project.get("license")
    patterns = [str(item) for item in listed] if isinstance(listed, list) else []
    if isinstance(license_field, dict) and "file" in license_field:
        patterns.append(str(license_field["file"]))
    # A project that lists its license files means these alone; a wheel has copied them already.
    if patterns and ".dist-info/" not in path:
        return any(PurePosixPath(path).match(pattern) for pattern in patterns)
    return bool(_LICENSE_NAME.fullmatch(PurePosixPath(path).name)) or _is_in_licenses(path)


def _is_in_licenses(path: str) -> bool:
    """Return whether a file is in the folder of license texts named by SPDX id: `LICENSES/MIT.txt`."""
    folder, _, name = path.rpartition("/")
    return folder.upper() in {"LICENSES", "LICENCES"} and PurePosixPath(name).suffix in {"", ".txt", ".md"}


# --- build settings: of setuptools, Poetry, Hatch, Flit, PDM, uv, Maturin and scikit-build ----------------------------

# Where packages are, below `tool` in pyproject.toml.
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


@dataclass(frozen=True, slots=True)
class _Settings:
    """The build settings of one project; each empty if there is none, or it cannot be read."""

    folder: str = ""
    pyproject: Mapping[str, object] = field(default_factory=dict)
    config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    script: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: str, texts: Mapping[str, str]) -> "_Settings":
        """Return the settings in the texts of a folder."""
        project, config, script = (texts.get(str(PurePosixPath(folder, name)), "") for name in _SETTINGS)
        pyproject: Mapping[str, object] = {}
        with contextlib.suppress(tomllib.TOMLDecodeError):  # a foreign file; ignore it
            pyproject = tomllib.loads(project)
        parser = configparser.RawConfigParser(strict=False)
        with contextlib.suppress(configparser.Error):
            parser.read_string(config)
        sections = {name: dict(parser.items(name)) for name in parser.sections()}
        return cls(folder, pyproject, sections, _read_setup_script(script))

    @property
    def project(self) -> Mapping[str, object]:
        """The table `project` of pyproject.toml."""
        return _table(self.pyproject, "project")

    @property
    def name(self) -> str:
        """Normalized name of the project; "" if none is stated."""
        stated = (self.project, self._tool("poetry"), self.config.get("metadata", {}), self.script)
        return canonicalize_name(next((str(item["name"]) for item in stated if "name" in item), ""))

    def requires(self) -> list[str] | None:
        """Return the stated requirements, one a line; None if none are stated, or another file has them."""
        options, flit = self.config.get("options", {}), self._tool("flit.metadata")
        extras = _table(self.project, "optional-dependencies")
        dynamic = "dependencies" in _strings(self.project.get("dynamic"))
        stated = (
            (self.project.get("dependencies", [] if extras and not dynamic else None), extras),
            (flit.get("requires"), _table(flit, "requires-extra")),
            (options.get("install_requires"), self.config.get("options.extras_require", {})),
            (self.script.get("install_requires"), _table(self.script, "extras_require")),
        )
        for required, extras in stated:
            if required is not None and not str(required).strip().startswith("file:"):
                return [*_strings(required), *_list_extras(extras)]
        needs = self._tool("poetry").get("dependencies")
        return list(_read_poetry(needs)) if isinstance(needs, dict) else None

    def roots(self) -> Roots:
        """Return where the project has its packages, as folders relative to the source."""
        folders: dict[str, str] = {}
        for path, package in list(self._list_roots()) or [("src", "")]:
            where = "/".join(part for part in PurePosixPath(self.folder, path).parts if part != ".")
            if ".." not in PurePosixPath(where).parts and (where or package):
                folders.setdefault(where, package.replace("/", "."))
        return tuple(sorted(folders.items()))

    def _list_roots(self) -> Iterator[tuple[str, str]]:
        """Yield what is stated: folders, each with the package that it becomes."""
        lines = (line.partition("=") for line in _strings(_find(self.config, "options", "package_dir")))
        configured = {name.strip(): path.strip() for name, _, path in lines}
        for renamed in (self._tool("setuptools.package-dir"), configured, _table(self.script, "package_dir")):
            yield from ((path, str(package)) for package, path in renamed.items() if isinstance(path, str))
        yield from ((path, "") for path in _strings(_find(self.config, "options.packages.find", "where")))
        entries = self._tool("poetry").get("packages")
        for entry in map(_table, entries) if isinstance(entries, list) else ():
            below, package = entry.get("from"), entry.get("to")
            if isinstance(below, str):
                yield below, package if isinstance(package, str) else ""
        yield from ((path, "") for path in self._tool_strings(_FOLDERS))
        for setting in _RENAMED:
            yield from ((path, package) for path, package in self._tool(setting).items() if isinstance(package, str))
        yield from ((path.rpartition("/")[0], "") for path in self._tool_strings(_LISTED) if "/" in path.strip("/"))

    def _tool(self, setting: str) -> Mapping[str, object]:
        return _table(self.pyproject, "tool", *setting.split("."))

    def _tool_strings(self, settings: Iterable[str]) -> Iterator[str]:
        for setting in settings:
            yield from _strings(_find(self.pyproject, "tool", *setting.split(".")))


def _read_setup_script(text: str) -> dict[str, object]:
    """Return the literal keyword arguments of the last call of `setup`: the script is foreign code, and never run.

    A name that is bound once in the script, to a literal, is one.
    """
    try:
        nodes = list(ast.walk(parse_code(text[:_MAX_SCRIPT])))
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


def _find(value: object, *keys: str) -> object:
    """Return what is below these keys of nested tables; None if there is nothing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _table(value: object, *keys: str) -> Mapping[str, object]:
    """Return the table below these keys; an empty one if there is none, or something else."""
    found = _find(value, *keys)
    return found if isinstance(found, Mapping) else {}


def _strings(value: object) -> list[str]:
    """Return the texts in a list; a text alone is one of its lines each."""
    if isinstance(value, str):
        return [line.strip() for line in value.splitlines() if line.strip()]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list | tuple) else []


def _list_extras(extras: Mapping[str, object]) -> Iterator[str]:
    for extra, needs in extras.items():
        for need in _parse_lines(_strings(needs)):
            requirement = Requirement(need)
            condition = f"({requirement.marker}) and " if requirement.marker else ""
            requirement.marker = None
            if extra.replace("-", "").replace("_", "").isalnum():
                yield f"{requirement} ; {condition}extra == '{extra}'"


def _read_poetry(needs: Mapping[str, object]) -> Iterator[str]:
    """Yield requirements as Poetry writes them: `einops = "^0.6"` is `einops>=0.6,<0.7`."""
    for name, value in needs.items():
        if name.lower() == "python":
            continue
        entry = value[0] if isinstance(value, list) and value else value
        options: Mapping[str, object] = entry if isinstance(entry, dict) else {"version": entry}
        version, marker = options.get("version"), options.get("markers")
        condition = marker if isinstance(marker, str) else "extra == 'optional'" if options.get("optional") else ""
        limits = _translate_poetry(version) if isinstance(version, str) else ""
        yield f"{name}{limits}{f' ; {condition}' if condition else ''}"


def _translate_poetry(version: str) -> str:
    """Return a version constraint of Poetry as PEP 440 has it; "" if any version will do, or it has another form."""
    parts = [part.strip() for part in version.split(",")] if "||" not in version else []
    limits = []
    for part in parts:
        number = part.lstrip("^~ ")
        try:
            release = Version(number).release if part[:1] in "^~" and part[1:2] != "=" else ()
        except InvalidVersion:
            return ""
        if release:
            first = next((index for index, digit in enumerate(release) if digit), len(release) - 1)
            keep = first if part[0] == "^" else min(1, len(release) - 1)
            limits += [f">={number}", f"<{'.'.join(map(str, (*release[:keep], release[keep] + 1)))}"]
        elif part[:1].isdigit():
            limits.append(f"=={part}")
        elif part != "*":
            limits.append(part)
    return ",".join(limits)


def _list_required(own: _Settings, texts: Mapping[str, str]) -> list[str]:
    """Return the requirements of the source itself: its settings', else those of a build, else of a file of them."""
    egg = next((text for path, text in texts.items() if path.endswith(".egg-info/requires.txt")), None)
    if egg is not None and "dependencies" not in own.project:
        return egg.partition("\n[")[0].splitlines()
    stated = own.requires()
    if stated is not None:
        return stated
    listed = next((texts[path] for path in _REQUIREMENT_FILES if path in texts), "")
    return [line.partition(" #")[0] for line in listed.splitlines()]


def _parse_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        with contextlib.suppress(InvalidRequirement):  # a comment, a pip option, a section
            yield str(Requirement(line.strip()))
