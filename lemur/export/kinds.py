"""`lemur verify`, `lemur list` and `lemur trace` for an export."""

import difflib
from collections.abc import Iterator
from pathlib import Path

from lemur.export.records import EXPORT, ExportedRow, KernelProblem
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from manifests.folders.checks import Check, check_description, check_faults, check_files
from manifests.folders.formats import FolderKind, FolderLink, ListedItem, RowTrace
from manifests.folders.manifest import read_manifest
from manifests.folders.tables import read_rows

_NEAR = 5


def verify(folder: Path, *, jobs: int | None = None) -> list[Check]:  # noqa: ARG001 (same signature for all verifiers)
    """Run all checks of an export, in a fixed order. Raises: UserError if it has no valid manifest."""
    manifest = read_manifest(folder)
    stated = {name: number for name, number in manifest.counts["rows"].items() if number}
    checks = [check_files(folder, manifest), *EXPORT.check_tables(folder, list(stated))]
    if not all(check.ok for check in checks):
        return checks
    rows = list(_rows(folder))
    wrong = [
        f"{name} has {counted} rows, not {stated.get(name, 0)}"
        for name in EXPORT.tables
        if (counted := sum(table == name for table, _ in rows)) != stated.get(name, 0)
    ]
    files = [row for _, row in rows if isinstance(row, KernelProblem)]
    wrong += [
        f"level1/{row.name} is not the code of its row"
        for row in files
        if (folder / "level1" / row.name).read_text(encoding="utf-8") != row.code
    ]
    return [
        *checks,
        *check_description(folder, manifest, EXPORT.tables),
        check_faults("rows", wrong, f"{plural(len(rows), 'row')} as the manifest counts them"),
    ]


def _rows(folder: Path) -> Iterator[tuple[str, ExportedRow]]:
    for name, (record, _) in EXPORT.tables.items():
        for row in read_rows(EXPORT.files(folder, name), record):
            assert isinstance(row, ExportedRow)
            yield name, row


def find(folder: Path, wanted: str) -> RowTrace:
    """Find rows by a name or id. Raises: UserError, with similar names, if there is none."""
    rows = list(_rows(folder))
    if matching := [(name, row) for name, row in rows if wanted in row.names]:
        return _trace_rows(matching)
    names = sorted({name for _, row in rows for name in row.names})
    near = ", ".join(difflib.get_close_matches(wanted, names, _NEAR) or names[:_NEAR])
    raise UserError(f"{wanted}: no row of {folder} has that name; similar names: {near}")


def find_code(folder: Path, sha256: str) -> RowTrace | None:
    """Return the rows about this code of the source folder; None if there are none."""
    matching = [(name, row) for name, row in _rows(folder) if row.code_sha256 == sha256]
    return _trace_rows(matching) if matching else None


def _trace_rows(rows: list[tuple[str, ExportedRow]]) -> RowTrace:
    links = tuple(
        FolderLink(name, row.names[-1], {"code": row.code_sha256, "license": row.license}) for name, row in rows
    )
    return RowTrace(links, tuple(dict.fromkeys(row.code_sha256 for _, row in rows)))


def list_rows(folder: Path) -> Iterator[ListedItem]:
    """Yield the rows of all tables."""
    for name, row in _rows(folder):
        yield ListedItem(row.names, {"table": name, "license": row.license})


KINDS = (FolderKind(EXPORT, verify, find, find_code, None, list_rows),)
