"""Check finished folders of any kind: their files and digests, the columns and rows of tables, what is derived."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import DamagedError, UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import make_visible, plural
from lemur_core.files.progress import show_item
from manifests.folders.frame import foreign_page_files
from manifests.folders.manifest import (
    FILE_NAME,
    INDEX,
    PAGE_FILES,
    Manifest,
    foreign_files,
    is_of_page,
    package_versions,
)
from manifests.folders.tables import CHECK_ERRORS, READ_ERRORS, describe, read_json, read_rows
from manifests.records import Record

_SHOWN = 60  # characters of a value
_LISTED = 3  # cells of a column


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `lemur verify`."""

    name: str
    ok: bool
    detail: str


def check_files(folder: Path, manifest: Manifest) -> Check:
    """Check that every file has the digest stated in the manifest, that there are no others, nor links, nor any that
    folders of this kind do not have. The files of the HTML page are checked against an index of their own.
    """
    show_item("digests")
    listed = {item.path: item for item in manifest.outputs}
    links = find_links(folder)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    files -= {FILE_NAME, *links}
    present = {name for name in files if not is_of_page(name)}
    wrong = [f"{name} is a link" for name in links]
    wrong += [f"{name} is missing" for name in sorted(listed.keys() - present - set(links))]
    wrong += [f"{name} is not in the manifest" for name in sorted(present - listed.keys())]
    wrong += foreign_files(manifest.kind, sorted(present & listed.keys()))
    wrong += [
        f"{name} differs from its digest"
        for name in sorted(listed.keys() & present)
        if sha256_file(folder / name) != listed[name].sha256
    ]
    wrong += [
        f"{name} has {(folder / name).stat().st_size:,} bytes, {item.bytes:,} are stated"
        for name, item in sorted(listed.items())
        if not wrong and (folder / name).stat().st_size != item.bytes
    ]
    wrong += list(_row_faults(folder, manifest, present))
    # A page is not in the manifest, since it can be made again at any time, by a later release.
    wrong += _page_faults(folder, files - present)
    return check_faults("digests", wrong, f"{plural(len(listed), 'file')} as the manifest states")


def find_links(folder: Path) -> list[str]:
    """Return the links in a folder, to whatever: what they show may change, and is not in the folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink())


def _row_faults(folder: Path, manifest: Manifest, present: set[str]) -> Iterator[str]:
    """Yield the files whose number of rows is not as stated."""
    for item in manifest.outputs:
        if item.rows is None or item.path not in present:
            continue
        try:
            path = folder / item.path
            check_plain(path)
            is_table = path.suffix == ".parquet"
            rows = pq.read_metadata(path).num_rows if is_table else path.read_bytes().count(b"\n")
        except READ_ERRORS as error:
            yield f"{item.path} cannot be read: {describe(error)}"
            continue
        if rows != item.rows:
            yield f"{item.path} has {rows:,} rows, {item.rows:,} are stated"


def _page_faults(folder: Path, present: set[str]) -> Iterator[str]:
    """Yield the differences between the files of a folder's page, if it has one, and their index."""
    if not present:
        return
    try:
        listed: dict[str, str] = dict(read_json(folder / PAGE_FILES))
    except CHECK_ERRORS:
        yield f"{PAGE_FILES} is missing or not readable"
        return
    for name in sorted(listed.keys() | (present - {PAGE_FILES})):
        if name not in present or name not in listed:
            yield f"{name} is {'missing' if name in listed else f'not in {PAGE_FILES}'}"
        elif sha256_file(folder / name) != listed[name]:
            yield f"{name} differs from its digest"
    try:
        yield from foreign_page_files(folder)
    except CHECK_ERRORS as error:
        yield f"{INDEX}: {describe(error)}"


def run_checks(name: str, make: Callable[[], Check | list[Check]]) -> list[Check]:
    """Run checks of a folder's contents.

    Returns: the checks; one failed check of this name instead if values in the folder are inconsistent.
    """
    show_item(name)
    try:
        checks = make()
    except DamagedError:  # the cache, not the folder
        raise
    except (UserError, *CHECK_ERRORS) as error:
        return [Check(name, ok=False, detail=f"cannot be checked: {describe(error)}")]
    return checks if isinstance(checks, list) else [checks]


def check_table(folder: Path, pattern: str, record: type[Record]) -> Check:
    """Check the columns of tables, and each row, against a record type.

    Args: pattern: a glob relative to the folder, such as `data/records/*.parquet`; no match is a fault.
    Returns: one check; it reports only the first fault of a file.
    """
    show_item(name := f"schema {record.__name__}")
    files, rows = sorted(folder.glob(pattern)), 0
    wrong = [] if files else [f"no file {pattern}"]
    for path in files:
        try:
            rows += sum(1 for _ in read_rows([path], record))
        except READ_ERRORS as error:
            wrong.append(describe(error).replace(str(path), path.name))
    return check_faults(name, wrong, f"{plural(rows, 'row')} in {plural(len(files), 'file')}")


def check_faults(name: str, wrong: list[str], passed: str) -> Check:
    """Return a check that fails with the first three faults, or passes if there are none.

    Args:
        wrong: all faults, each a short text without a full stop.
        passed: the detail if there are no faults.
    """
    if not wrong:
        return Check(name, ok=True, detail=passed)
    more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
    return Check(name, ok=False, detail="; ".join(wrong[:3]) + more)


# What follows from the rest of a folder, made again by its writer.


def check_derived(folder: Path, manifest: Manifest, made: Path, stated: Mapping[str, Mapping[str, Any]]) -> Check:
    """Compare what was made again, cell by cell, with the files and the manifest of a folder.

    Args: made: a folder with the files. stated: facts by field of the manifest, `counts` and `details`.
    """
    names = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
    if manifest.versions.get("matplotlib") != package_versions()["matplotlib"]:
        names = [name for name in names if not name.endswith((".png", ".svg"))]
    wrong: list[str] = []
    for name in names:
        if not (folder / name).is_file():
            wrong.append(f"{name} is missing")
        elif name.endswith(".parquet"):
            wrong += _compare_tables(name, made / name, folder / name)
        elif (made / name).read_bytes() != (folder / name).read_bytes():
            wrong += _text_faults(name, made / name, folder / name)
    for field, facts in stated.items():
        own = {key: value for key, value in getattr(manifest, field).items() if key in facts}
        wrong += (f"manifest: {fault}" for fault in _json_faults(json.loads(json.dumps(facts)), own, f"{field}."))
    return check_faults(
        "derived", wrong, f"{plural(len(names), 'file')} made again by the writer: no cell and no line differs"
    )


def _compare_tables(name: str, made: Path, found: Path) -> Iterator[str]:
    """Yield the cells of a table that differ, at most three of a column."""
    with pq.ParquetFile(made) as one, pq.ParquetFile(found) as other:
        columns = [column for column in one.schema_arrow.names if column in other.schema_arrow.names]
        yield from (f"{name}: has no column {column}" for column in one.schema_arrow.names if column not in columns)
        if one.metadata.num_rows != other.metadata.num_rows:
            yield f"{name}: has {other.metadata.num_rows:,} rows, not {one.metadata.num_rows:,}"
            return
        for column in columns:  # one at a time: codes and graphs are large
            expected, stated = (file.read([column])[column] for file in (one, other))
            if expected.equals(stated):
                continue
            pairs = zip(expected.to_pylist(), stated.to_pylist(), strict=True)
            differing = [(row, own, other) for row, (own, other) in enumerate(pairs) if own != other]
            for row, should, found_value in differing[:_LISTED]:
                yield f"{name} row {row}: {column} is {_show(found_value)}, not {_show(should)}"


def _text_faults(name: str, made: Path, found: Path) -> Iterator[str]:
    """Yield where two files differ: values of JSON by their keys, of other text the first line."""
    try:
        texts = [path.read_text(encoding="utf-8") for path in (made, found)]
    except ValueError:
        yield f"{name} is not what its writer makes"
        return
    if name.endswith(".json"):
        with contextlib.suppress(ValueError):
            differing = list(_json_faults(*map(json.loads, texts)))
            yield from (f"{name}: {fault}" for fault in differing[:_LISTED] or ["is written otherwise"])
            return
    lines = [text.split("\n") for text in texts]
    number = next((n for n, (one, other) in enumerate(zip(*lines, strict=False)) if one != other), min(map(len, lines)))
    here, there = (part[number] if number < len(part) else "" for part in lines)
    faults = [f"{_show(there)}, not {_show(here)}"]
    if name.endswith(".jsonl"):
        with contextlib.suppress(ValueError):
            faults = list(_json_faults(json.loads(here), json.loads(there)))[:_LISTED] or ["is written otherwise"]
    yield from (f"{name}, line {number + 1}: {fault}" for fault in faults)


def _json_faults(made: Any, found: Any, at: str = "") -> Iterator[str]:
    """Yield the values that differ, each with the path of its keys."""
    if isinstance(made, dict) and isinstance(found, dict):
        for key in dict.fromkeys((*made, *found)):
            if key not in made or key not in found:
                yield f"{at}{key} is {'missing' if key in made else 'one too many'}"
            else:
                yield from _json_faults(made[key], found[key], f"{at}{key}.")
    elif made != found:
        yield f"{at.removesuffix('.') or 'it'} is {_show(found)}, not {_show(made)}"


def _show(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return make_visible(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
