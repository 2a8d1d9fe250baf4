"""What METADATA, PKG-INFO, pyproject.toml and requirement files say of a source; nothing is executed to learn it."""

import email.parser
import email.policy
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement

from manifests.license_metadata import find_license, license_of_fields

_LICENSE_NAME = re.compile(r"(?i)(?:(?:un)?licen[sc]e|copying)(?:[._-](?!py$)[a-z0-9.-]+)?")
_REQUIREMENT_FILES = ("requirements/runtime.txt", "requirements.txt")
_MAX_TEXT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Facts:
    """Name and version are "" where no metadata states them."""

    name: str
    version: str
    license: str
    requires: tuple[str, ...]


def is_text(path: str) -> bool:
    """Whether a file of this path, relative to the root of a source, is one that `read_facts` can use."""
    parts = PurePosixPath(path).parts
    name = parts[-1]
    if len(parts) == 1:
        return bool(_LICENSE_NAME.fullmatch(name)) or name in ("PKG-INFO", "pyproject.toml", "requirements.txt")
    if parts[0].endswith(".dist-info"):
        return name == "METADATA" or bool(_LICENSE_NAME.fullmatch(name))
    return path in _REQUIREMENT_FILES or (parts[-2].endswith(".egg-info") and name == "requires.txt")


def read_facts(texts: Mapping[str, bytes]) -> Facts:
    """Name, version, licence and requirements, from the best text that states each."""
    decoded = {path: data[:_MAX_TEXT_BYTES].decode("utf-8", "replace") for path, data in sorted(texts.items())}
    licenses = [text for path, text in decoded.items() if _LICENSE_NAME.fullmatch(PurePosixPath(path).name)]
    project = _read_pyproject(decoded.get("pyproject.toml", ""))
    header = next((text for path, text in decoded.items() if PurePosixPath(path).name in ("METADATA", "PKG-INFO")), "")
    fields = email.parser.Parser(policy=email.policy.compat32).parsestr(header, headersonly=True)
    stated = license_of_fields(
        str(fields.get("License-Expression", "")),
        str(fields.get("License", "")),
        [value.removeprefix("License ::").strip() for value in map(str, fields.get_all("Classifier", []))],
    )
    requires = tuple(str(value) for value in fields.get_all("Requires-Dist", []))
    return Facts(
        str(fields.get("Name", "")),
        str(fields.get("Version", "")),
        find_license(stated, licenses),
        requires or _requirements(project, decoded),
    )


def _read_pyproject(text: str) -> dict[str, object]:
    try:
        project = tomllib.loads(text).get("project", {})
    except tomllib.TOMLDecodeError:  # a foreign file that is none of our business
        return {}
    return project if isinstance(project, dict) else {}


def _requirements(project: Mapping[str, object], texts: Mapping[str, str]) -> tuple[str, ...]:
    stated = project.get("dependencies")
    if isinstance(stated, list):
        return tuple(_valid(str(item) for item in stated))
    egg = next((text for path, text in texts.items() if path.endswith(".egg-info/requires.txt")), None)
    if egg is not None:
        return tuple(_valid(egg.partition("\n[")[0].splitlines()))
    listed = next((texts[path] for path in _REQUIREMENT_FILES if path in texts), "")
    return tuple(_valid(line.partition(" #")[0] for line in listed.splitlines()))


def _valid(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        try:
            yield str(Requirement(line.strip()))
        except InvalidRequirement:  # a comment, an option of pip, a section
            continue
