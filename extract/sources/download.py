"""Wheels and sdists by `pip download`, so that the user's own index settings apply; nothing of them is executed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

from extract.sources.archive import SDIST_SUFFIXES
from extract.sources.pip_refusing import EXIT_ARCHIVE
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.progress import note

_SCRIPT = Path(__file__).with_name("pip_refusing.py")
_UNREACHABLE = re.compile(
    r"Retrying|Max retries|Connection|ProxyError|[Tt]imed out|SSLError|IncompleteRead|HTTP error 5"
)
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_NEAR = 6


def download(name: str, version: str, folder: Path) -> Path:
    """The wheel of a release for this platform, or its sdist where it has none, in an empty folder or pip's own cache.

    Raises: UserError if there is no such package or version; RetryableError if the index cannot be reached.
    """
    note(f"fetching {name}{'==' + version if version else ''} with pip download")
    wheels, scratch, result = folder / "wheels", folder / "scratch", folder / "result"
    for each in (wheels, scratch):
        each.mkdir(exist_ok=True)
    requirement = f"{name}=={version}" if version else name
    arguments = ["download", "--quiet", "--no-deps", "--no-cache-dir", "--no-input", "--progress-bar", "off"]
    arguments += ["--disable-pip-version-check", "--dest", str(wheels), requirement]
    done = _pip([str(_SCRIPT), f"{name}-", str(result), *arguments], scratch)
    if done.returncode == EXIT_ARCHIVE and result.is_file():
        return Path(result.read_text(encoding="utf-8"))
    fetched = sorted(path for path in wheels.iterdir() if path.name.endswith((".whl", *SDIST_SUFFIXES)))
    if done.returncode != 0 or not fetched:
        raise _explain(name, version, done.stderr)
    return fetched[0]


def latest_version(name: str, scratch: Path) -> str | None:
    """The newest release that pip would take; None if it cannot tell."""
    done = _pip(["-m", "pip", "index", "versions", "--disable-pip-version-check", name], scratch)
    match = re.match(r"\S+ \(([^)]+)\)", done.stdout)
    return match[1] if done.returncode == 0 and match else None


def _pip(arguments: list[str], scratch: Path) -> subprocess.CompletedProcess[str]:
    scratch.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONIOENCODING": "utf-8"}
    environment.pop("PIP_REQUIRE_VIRTUALENV", None)
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, cwd=scratch, env=environment
    )


def _explain(name: str, version: str, stderr: str) -> UserError:
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")] or stderr.splitlines()[-1:]
    detail = errors[-1].removeprefix("ERROR:").strip() if errors else "pip said nothing"
    spec = f"{name}@{version}" if version else name
    match = _VERSIONS.search(stderr)
    versions = [] if match is None or match[1] == "none" else match[1].split(", ")
    if versions:
        return UserError(f"{spec}: no such release; near ones: {', '.join(near_versions(version, versions))}")
    if _UNREACHABLE.search(stderr):
        return RetryableError(f"{spec}: the package index cannot be reached; check the network, run again")
    if match is not None:
        return UserError(
            f"{spec}: no package of this name for this Python; check the spelling (a local folder is written ./{name})"
        )
    return UserError(f"{spec}: could not be fetched: {detail}; `pip download {spec.replace('@', '==')}` may tell more")


def near_versions(wanted: str, versions: list[str]) -> list[str]:
    """The few versions around the wanted one, in order, the newest among them."""
    ordered = sorted(version for version in map(_version, versions) if version is not None)
    target = _version(wanted)
    if target is None or not ordered:
        return [str(version) for version in ordered[-_NEAR:]]
    place = sum(version < target for version in ordered)
    start = max(0, min(place - _NEAR // 2, len(ordered) - _NEAR))
    chosen = ordered[start : start + _NEAR]
    return [str(version) for version in (chosen if ordered[-1] in chosen else [*chosen[:-1], ordered[-1]])]


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
