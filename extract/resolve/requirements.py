"""`required_repos.json`: the requirements of each closed file, and the origin of every part of it.

Requirements are PEP 508, with the versions that the source states, if any; `runtime` holds the exact versions of the
declared runtime in which the blocks were validated. Locations are SWHIDs: `swh:1:cnt:` of each file, qualified by the
origin, the source as anchor, path and lines, and `swh:1:rev:` or `swh:1:dir:` of the source (a `dir` covers the
Python files that were read, without tests, docs and examples).
"""

import ast
import importlib.metadata
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from extract.resolve.distributions import parse_requirements
from extract.resolve.modules import RUNTIME, list_packages
from extract.resolve.standins import replacement_source
from extract.sources import PackageSource
from manifests.provenance import is_guess
from manifests.provenance.licenses import is_permissive
from manifests.provenance.swhid import directory_swhid, qualify_swhid
from manifests.records import Block

FORMAT = 1

Files = Sequence[tuple[str, str]]

_IMPORT = re.compile(rf"^([ \t]*)(?:import|from)[ \t]+({'|'.join(RUNTIME)})\b", re.MULTILINE)


def runtime_versions() -> dict[str, str]:
    """Return the installed versions of the declared runtime, without local build labels."""
    return {name: Version(importlib.metadata.version(name)).public for name in RUNTIME}


def requirements_text(
    rows: Iterable[Block], files_of_block: Mapping[str, Files], sources: Sequence[PackageSource]
) -> str:
    """Return the text of the file: one JSON object, with one line for each block that has code, in row order.

    Args:
        files_of_block: (source, path) of every file that a block was extracted from, by block.
        sources: the opened sources; our own replacements need not be among them.
    """
    by_name = {source.name: source for source in (replacement_source(), *sources)}
    blobs = {name: {file.path: file.blob for file in source.files} for name, source in by_name.items()}
    runtime = runtime_versions()
    paths_used: dict[str, set[str]] = {}
    blocks = []
    for row in rows:
        if row.code is None:
            continue
        files = files_of_block.get(row.block) or ((row.source, row.path),)
        for name, path in files:
            paths_used.setdefault(name, set()).add(path)
        blocks.append(_block_entry(row, files, by_name))
    header: dict[str, Any] = {
        "format": FORMAT,
        "runtime": runtime,
        "sources": {name: _source_entry(by_name[name]) for name in by_name if name in paths_used},
        "files": {
            name: {path: f"swh:1:cnt:{blobs[name][path]}" for path in sorted(paths_used[name])}
            for name in by_name
            if name in paths_used
        },
    }
    lines = [
        f" {json.dumps(key)}: {json.dumps(value, indent=1, ensure_ascii=False)},".replace("\n", "\n ")
        for key, value in header.items()
    ]
    entries = ",\n".join("  " + json.dumps(entry, ensure_ascii=False) for entry in blocks)
    return "\n".join(["{", *lines, ' "blocks": [', *([entries] if entries else []), " ]", "}", ""])


def add_versions(requires: Iterable[str], sources: Iterable[PackageSource]) -> tuple[str, ...]:
    """Return the requirements, sorted, each with the version stated by the first source that has one.

    A requirement that is a guess, has a version, or is named by no source is returned unchanged.
    """
    stated = [item for source in sources for item in parse_requirements(source.requires) if item.specifier]
    versions = {canonicalize_name(item.name): item.specifier for item in reversed(stated)}  # the first one wins

    def add_version(text: str) -> str:
        requirement = Requirement(text)
        specifier = versions.get(canonicalize_name(requirement.name))
        if requirement.specifier or requirement.url or is_guess(text) or specifier is None:
            return text
        return str(Requirement(f"{requirement.name}{specifier}"))

    return tuple(sorted(set(map(add_version, requires))))


def list_runtime_imports(code: str) -> set[str]:
    """Return the packages of the declared runtime that a file imports, including imports inside functions."""
    packages = {match[2] for match in _IMPORT.finditer(code) if not match[1]}
    # Parsing costs more than the search, so it is left for imports in a function, or only in a docstring.
    if any(match[2] not in packages for match in _IMPORT.finditer(code)):
        packages |= {name.partition(".")[0] for name, _ in list_imports(ast.parse(code))} & set(RUNTIME)
    return packages


def list_imports(tree: ast.AST) -> list[tuple[str, int]]:
    """Return the dotted names of all modules that a file imports, with lines; relative names begin with a dot."""
    names = []
    for node in _list_statements(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(("." * node.level + (node.module or ""), node.lineno))
    return sorted(names, key=lambda item: (item[1], item[0]))


def _list_statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a tree, at any depth; without their expressions, which are most of it."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, name, None)
            waiting += below if isinstance(below, list) else []


def _block_entry(row: Block, files: Files, by_name: Mapping[str, PackageSource]) -> dict[str, object]:
    source = by_name[row.source]
    runtime = list_runtime_imports(row.code or "") | {"torch"}  # the class is an nn.Module, however that is imported
    paths: dict[str, list[str]] = {row.source: []}
    for name, path in files:
        paths.setdefault(name, []).append(path)
    sources = [by_name[name] for name in paths]
    return {
        "block": row.block,
        "requires": [*add_versions(runtime, sources), *add_versions(row.requires, sources)],
        "origin": source.origin or None,
        "swhid": qualify_swhid(
            row.swhid,
            origin=source.origin,
            anchor=source.swhid,
            path=f"/{row.path}",
            lines=(row.start_line, row.end_line),
        ),
        "source_swhid": source.swhid or None,
        "license": row.license,
        "made_from": {name: used for name, used in paths.items() if used},
    }


def _source_entry(source: PackageSource) -> dict[str, object]:
    listing = [(file.path, file.blob) for file in source.files]
    return {
        "kind": source.kind,
        "version": source.version or None,
        "origin": source.origin or None,
        "swhid": source.swhid or directory_swhid(listing),
        "digest": source.digest or None,
        "license": source.license,
        "permissive": is_permissive(source.license),
        "packages": sorted(list_packages(source)),
    }
