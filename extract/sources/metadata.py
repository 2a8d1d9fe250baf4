"""Name, version, license, requirements and layout of a project, as its texts state them; nothing is executed.

Read are METADATA and PKG-INFO of releases, pyproject.toml, setup.cfg, literals of setup.py, requirement files and
license texts; of the projects in a repository of several, their build settings, too.
"""

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

from extract.sources.layout import Roots, list_roots, read_setup_script, strings, table
from lemur_core.files.foreign import decode_python
from manifests.provenance.licenses import NOASSERTION, find_license, license_of_fields

_LICENSE_NAME = re.compile(r"(?i)(?:(?:un)?licen[sc]e|copying)(?:[._-](?!py$)[a-z0-9.-]+)?")
_REQUIREMENT_FILES = ("requirements/runtime.txt", "requirements.txt")
_SETTINGS = ("pyproject.toml", "setup.cfg", "setup.py")
_MAX_TEXT_BYTES = 4 << 20
_DEEPEST = 4  # folders above a project in a repository of several
#: Folders whose projects are not the source's own: their packages are in the way of nothing there.
_NOT_OWN = frozenset({"test", "tests", "docs", "doc", "examples", "example", "benchmarks", "node_modules"})


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """Facts of a project; name and version are "" if no metadata states them."""

    name: str
    version: str
    license: str
    requires: tuple[str, ...]  # requirements, PEP 508; those of extras have a marker
    roots: Roots = ()  # as in `extract.sources.layout`


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
    installed = any(".dist-info/" in path for path in decoded)  # the settings of its build mean nothing there
    settings = {} if installed else {folder: _Settings.read(folder, decoded) for folder in _list_projects(decoded)}
    own = settings.get("", _Settings())
    header = next((text for path, text in decoded.items() if PurePosixPath(path).name in ("METADATA", "PKG-INFO")), "")
    fields, _ = parse_email(header)
    # Metadata of the release first: the project file only says how to build one.
    stated = _find_stated(fields.get("license_expression"), fields.get("license"), fields.get("classifiers"))
    if stated == NOASSERTION:
        project, licensed = own.project, own.project.get("license")
        stated = _find_stated(licensed, table(licensed).get("text"), project.get("classifiers"))
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
    named = [name.removeprefix("License ::").strip() for name in strings(classifiers) if name.startswith("License ::")]
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


# --- build settings ---------------------------------------------------------------------------------------------------


def _list_projects(texts: Iterable[str]) -> list[str]:
    """Return the folders with build settings, the source itself first."""
    return sorted({path.rpartition("/")[0] for path in texts if PurePosixPath(path).name in _SETTINGS})


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
        return cls(folder, pyproject, sections, read_setup_script(script))

    @property
    def project(self) -> Mapping[str, object]:
        """The table `project` of pyproject.toml."""
        return table(self.pyproject, "project")

    def roots(self) -> Roots:
        """Return where the project has its packages."""
        return list_roots(self.folder, self.pyproject, self.config, self.script)

    @property
    def name(self) -> str:
        """Normalized name of the project; "" if none is stated."""
        stated = (self.project, table(self.pyproject, "tool", "poetry"), self.config.get("metadata", {}), self.script)
        return canonicalize_name(next((str(item["name"]) for item in stated if "name" in item), ""))

    def requires(self) -> list[str] | None:
        """Return the stated requirements, one a line; None if none are stated, or another file has them."""
        poetry, options = table(self.pyproject, "tool", "poetry"), self.config.get("options", {})
        flit = table(self.pyproject, "tool", "flit", "metadata")
        extras = table(self.project, "optional-dependencies")
        dynamic = "dependencies" in strings(self.project.get("dynamic"))
        stated = (
            (self.project.get("dependencies", [] if extras and not dynamic else None), extras),
            (flit.get("requires"), table(flit, "requires-extra")),
            (options.get("install_requires"), self.config.get("options.extras_require", {})),
            (self.script.get("install_requires"), table(self.script, "extras_require")),
        )
        for required, extras in stated:
            if required is not None and not str(required).strip().startswith("file:"):
                return [*strings(required), *_list_extras(extras)]
        needs = poetry.get("dependencies")
        return list(_read_poetry(needs)) if isinstance(needs, dict) else None


def _list_extras(extras: Mapping[str, object]) -> Iterator[str]:
    for extra, needs in extras.items():
        for need in _parse_lines(strings(needs)):
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
