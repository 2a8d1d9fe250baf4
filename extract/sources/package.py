"""A released package: from the cache, the running interpreter or the index, all three with the same result."""

import re
from collections.abc import Collection
from pathlib import Path

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from extract.sources.archive import is_safe, read_archive
from extract.sources.contents import Contents
from extract.sources.download import download, latest_version
from extract.sources.installed import read_installed
from extract.sources.layout import keep_paths
from extract.sources.metadata import Facts, is_text, read_facts
from extract.sources.store import Found, keep_tree, read_found, record, store_folder, workspace
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from manifests.swhid import directory_swhid

PACKAGE_RE = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:(?:@|==)(?P<version>[^@/\\\s]+))?")
_DATA_FOLDER = re.compile(r"[^/]+\.data/(?:purelib|platlib)/(?P<rest>.+)")


def find_package(spec: str, digests: Collection[str]) -> Found:
    """What is known of a release; it is fetched when it is not in the cache.

    Args: digests: those that are pinned, for different platforms perhaps; () accepts any.
    Raises: UserError if the spec is none, or no such release exists, or its files differ from what is pinned;
        RetryableError if the index cannot be reached.
    """
    match = PACKAGE_RE.fullmatch(spec)
    if match is None:
        raise UserError(f"{spec!r}: not a package; write NAME or NAME@VERSION, for example timm@1.0.20")
    name = canonicalize_name(match["name"])
    version = _check_version(spec, match["version"]) if match["version"] else _newest(name)
    cached = _cached(name, version, digests)
    if cached is not None:
        return cached
    found = _from_installed(name, version)
    if found is None or not _is_pinned(found, digests):
        found = _from_index(name, version)
    if not _is_pinned(found, digests):
        raise UserError(
            f"{spec}: its Python files have the digest {found.digest}, not the pinned "
            f"{' or '.join(sorted(digests))}; do not use it unless you know why, then pin the new one"
        )
    return found


def _check_version(spec: str, version: str) -> str:
    try:
        return str(Version(version))
    except InvalidVersion as error:
        raise UserError(f"{spec}: {version!r} is not a version; write NAME@VERSION, for example timm@1.0.20") from error


def _newest(name: str) -> str:
    with workspace() as work:
        version = latest_version(name, work)
        if version is not None:
            return _check_version(name, version)
    known = sorted((path.name.partition("@")[2] for path in store_folder("packages").glob(f"{name}@*")), key=Version)
    if known:
        note(f"{name}: the newest release cannot be looked up; using {known[-1]} from the cache")
        return known[-1]
    return ""


def _folder(name: str, version: str) -> Path:
    return store_folder("packages") / f"{name}@{canonicalize_version(version)}"


def _cached(name: str, version: str, digests: Collection[str]) -> Found | None:
    folder = _folder(name, version)
    if not version or not folder.is_dir():
        return None
    names = sorted(digests) if digests else sorted(path.stem for path in folder.glob("*.json"))
    candidates = (read_found(folder / f"{digest}.json") for digest in names)
    return next((found for found in candidates if found is not None), None)


def _is_pinned(found: Found, digests: Collection[str]) -> bool:
    return not digests or found.digest in digests


def _from_installed(name: str, version: str) -> Found | None:
    contents = read_installed(name, version)
    return None if contents is None else _keep(name, version, contents)


def _from_index(name: str, version: str) -> Found:
    with workspace() as work:
        archive = download(name, version, work)
        return _keep(name, version, _read_release(archive))


def _read_release(archive: Path) -> Contents:
    """The files of a wheel or sdist, with their paths from its root as it would be installed or built from."""
    renamed: dict[str, str] = {}

    def choose(names: list[str]) -> list[str]:
        strip = "" if archive.suffix == ".whl" else _common_folder(names)
        for name in names:
            data = _DATA_FOLDER.fullmatch(name)
            path = data["rest"] if data else name.removeprefix(strip).removeprefix("./")
            if ".data/" not in path.partition("/")[0] + "/" and (is_safe(path) or not path):
                renamed[name] = path
        wanted = {*keep_paths(renamed.values()), *filter(is_text, renamed.values())}
        return [name for name, path in renamed.items() if path in wanted]

    files = {renamed[name]: data for name, data in read_archive(archive, choose).items()}
    python = {path: data for path, data in sorted(files.items()) if path.endswith(".py")}
    return Contents(python, {path: data for path, data in files.items() if path not in python})


def _common_folder(names: list[str]) -> str:
    tops = {name.partition("/")[0] for name in names if "/" in name}
    return f"{tops.pop()}/" if len(tops) == 1 else ""


def _keep(name: str, version: str, contents: Contents) -> Found:
    where = f"{name}@{version}" if version else name
    facts = _agreeing(where, name, version, read_facts(contents.texts))
    public = Version(facts.version).public
    digest, files = keep_tree(contents, where)
    found = Found(
        name=name,
        kind="package",
        version=public,
        origin=f"pkg:pypi/{name}@{public}",
        license=facts.license,
        digest=digest,
        swhid=directory_swhid((file.path, file.blob) for file in files),
        requires=facts.requires,
    )
    record(_folder(name, version or facts.version) / f"{digest}.json", found)
    return found


def _agreeing(where: str, name: str, version: str, facts: Facts) -> Facts:
    """The facts, if they are those of the release that was asked for."""
    try:
        fetched = Version(facts.version)
    except InvalidVersion as error:
        raise UserError(f"{where}: its metadata states no version ({facts.version!r}); use its repository") from error
    if canonicalize_name(facts.name) != name or (version and fetched.public != Version(version).public):
        raise UserError(f"{where}: what was fetched is {facts.name} {facts.version}; check the index settings of pip")
    return facts
