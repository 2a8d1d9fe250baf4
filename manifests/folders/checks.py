"""Check finished folders of any kind: the digests of files, and the columns and rows of tables."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import DamagedError, UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.progress import show_item
from manifests.folders.croissant import croissant_faults
from manifests.folders.frame import foreign_page_files
from manifests.folders.manifest import FILE_NAME, INDEX, PAGE_FILES, Manifest, is_of_page
from manifests.folders.reading import CHECK_ERRORS, READ_ERRORS, active_files, describe, read_json
from manifests.folders.tables import CROISSANT, Configs, select_tables
from manifests.records import Record, arrow_schema, first_fault


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `lemur verify`."""

    name: str
    ok: bool
    detail: str


def check_files(folder: Path, manifest: Manifest) -> Check:
    """Check that every file has the digest stated in the manifest, and that there are no other files, and no links.

    Args: manifest: of the folder, as read.
    Returns: one check; the files of the HTML page are not in the manifest, and are checked against their own index.
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
    wrong += [
        f"{name} differs from its digest"
        for name in sorted(listed.keys() & present)
        if sha256_file(folder / name) != listed[name].sha256
    ]
    # A page is not in the manifest, since it can be built again at any time, by a later release.
    wrong += _page_faults(folder, files - present)
    pages = _list_inner_pages(present)
    for inner, names in pages.items():
        wrong += [f"{inner}/{fault}" for fault in _page_faults(folder / inner, names)]
    page_files = {f"{inner}/{name}" for inner, names in pages.items() for name in names}
    wrong += active_files(folder, sorted(present - page_files))
    return check_faults("digests", wrong, f"{len(listed)} files as the manifest states")


def find_links(folder: Path) -> list[str]:
    """Return the links in a folder, to whatever: what they show may change, and is not in the folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink())


def _list_inner_pages(present: set[str]) -> dict[str, set[str]]:
    """Return the page files of the finished folders inside a folder, such as the runs of a study, by folder."""
    inner = sorted(name.removesuffix(f"/{FILE_NAME}") for name in present if name.endswith(f"/{FILE_NAME}"))
    below = {at: {path.removeprefix(f"{at}/") for path in present if path.startswith(f"{at}/")} for at in inner}
    pages = {at: set(filter(is_of_page, paths)) for at, paths in below.items()}
    return {at: files for at, files in pages.items() if files}


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

    Args: name, make: the name of the check that replaces them if they cannot run, and the function that runs them.
    Returns: the checks; one failed check instead if values in the folder are inconsistent.
    """
    show_item(name)
    try:
        checks = make()
    except DamagedError:  # the cache, not the folder
        raise
    except (UserError, *CHECK_ERRORS) as error:
        return [Check(name, ok=False, detail=f"cannot be checked: {describe(error)}")]
    return checks if isinstance(checks, list) else [checks]


def check_description(folder: Path, manifest: Manifest, configs: Configs) -> list[Check]:
    """Check `croissant.json` against the tables of a folder.

    Args: configs: the folder's tables by the name of their configuration.
    Returns: one check; none if the folder was written without this file.
    """
    rows = {item.path: item.rows or 0 for item in manifest.outputs}
    if CROISSANT not in rows:
        return []
    tables = select_tables(configs, rows)
    files = sum(len(table.paths(folder)) for table in tables)
    wrong = croissant_faults(folder, tables)
    return [check_faults(CROISSANT, wrong, f"{files} files of {len(tables)} tables as they are")]


def check_table(folder: Path, pattern: str, record: type[Record]) -> Check:
    """Check the columns of tables, and each row, against a record type; older tables may lack columns added later.

    Args:
        folder: the folder of the tables.
        pattern: a glob relative to it, such as `data/records/*.parquet`; no match is a fault.
        record: the type of a row.
    Returns: one check; it reports only the first wrong row of a file, and no rows after a file with wrong columns.
    """
    show_item(name := f"schema {record.__name__}")
    wrong: list[str] = []
    rows = 0
    expected = arrow_schema(record)
    files = sorted(folder.glob(pattern))
    for path in files:
        try:
            check_plain(path)
            with pq.ParquetFile(path) as file:
                wrong += _column_faults(path.name, file.schema_arrow, expected, record)
                # If a column is missing, every row fails for the same reason.
                if wrong:
                    break
                columns = [column for column in expected.names if column in file.schema_arrow.names]
                for batch in file.iter_batches(batch_size=500, columns=columns):  # codes may be large
                    for row in batch.to_pylist():
                        record.model_validate(row)
                    rows += batch.num_rows
        except ValidationError as error:
            wrong.append(f"{path.name}: {first_fault(error)}")
        except READ_ERRORS as error:
            wrong.append(f"{path.name}: not readable: {describe(error)}")
    if not files:
        wrong.append(f"no file {pattern}")
    return check_faults(name, wrong, f"{rows:,} rows in {len(files)} file{'s' if len(files) != 1 else ''}")


def _column_faults(name: str, present: pa.Schema, expected: pa.Schema, record: type[Record]) -> list[str]:
    faults = []
    for field in expected:
        index = present.get_field_index(field.name)
        if index < 0:
            if record.model_fields[field.name].is_required():
                faults.append(f"{name}: no column {field.name}")
        elif present.field(index).type != field.type:
            faults.append(f"{name}: column {field.name} is {present.field(index).type}, not {field.type}")
    return faults


def check_faults(name: str, wrong: list[str], passed: str) -> Check:
    """Return a check that fails with the first three faults, or passes if there are none.

    Args:
        name: the name of the check.
        wrong: all faults, each a short text without a full stop.
        passed: the detail if there are no faults.
    Returns: a check whose detail is one line.
    """
    if not wrong:
        return Check(name, ok=True, detail=passed)
    more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
    return Check(name, ok=False, detail="; ".join(wrong[:3]) + more)
