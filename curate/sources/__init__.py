"""Every SOURCE of `lemur curate`, as written on the command line, as a stream of Arrow record batches."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from curate.sources.folders import RECORDS, ExtractionFolder, ParquetFolder, PythonFolder, is_extraction
from curate.sources.lemur import DEFAULT_VERSION, DatabaseFile, LemurRelease
from curate.sources.rows import RecordSource, open_table
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.foreign import check_name, check_plain
from lemur_core.files.progress import note
from manifests.folders.manifest import FILE_NAME, Input, Parent, describe_parent, read_manifest
from manifests.provenance.licenses import NOASSERTION, combine_licenses

_FORMS = (
    "SOURCE is lemur[@VERSION], lemur-db[@VERSION], a .parquet/.json/.jsonl/.csv/.db/.zst file, a folder"
    " of .py files, or hf://datasets/OWNER/NAME"
)
_DATABASE = re.compile(r"\.(?:db|sqlite3?|zst)(?:-[\w.]+)?$", re.IGNORECASE)  # `ab.nn.zst-2.2.11`, too


def open_source(spec: str, of_files: Mapping[str, str] = {}) -> RecordSource:
    """Open the source that `spec` names; nothing is fetched and no row is read yet.

    Args: of_files: columns of the files of a folder, as far as its table states none.
    Returns: the source, which reads its rows batch by batch.

    Reserved words (`lemur`, `lemur-db`) win over a file of that name: write `./lemur` for the file.
    Raises: UserError if `spec` is not a valid SOURCE, or names a path that cannot be used.
    """
    name, at, version = spec.partition("@")
    if name == "lemur":
        return LemurRelease(version if at else DEFAULT_VERSION)
    if name == "lemur-db" or spec.startswith("hf://"):
        # The Hub's client takes 0.4 s to import, and most sources do without it.
        from curate.sources.services import HubDataset, LemurDatabase

        return HubDataset(spec) if name != "lemur-db" else LemurDatabase(version if at else None)
    path, shown = Path(spec), spec if spec and spec.isprintable() else repr(spec)
    try:
        if not spec:
            raise FileNotFoundError
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a NUL byte in the name
        near = difflib.get_close_matches(name, ("lemur", "lemur-db"), 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"{shown}: no such file or folder; {hint}{_FORMS}") from error
    except OSError as error:
        raise UserError(f"{shown}: cannot be read: {error.strerror}; {_FORMS}") from error
    check_plain(path, inside=False)
    check_name(path.resolve() if path.is_dir() else path)
    source: RecordSource | None
    if not path.is_dir():
        source = open_table(path) or (DatabaseFile(path) if _DATABASE.search(path.name) else None)
        none = "unknown kind of file"
    elif is_extraction(path):
        return ExtractionFolder(path)
    elif (path / FILE_NAME).is_file() and (path / RECORDS).is_dir():  # a finished folder: only its records
        return ParquetFolder(path / RECORDS, path.resolve().name)
    else:
        source = next(
            (of_kind for of_kind in (PythonFolder(path, of_files), ParquetFolder(path)) if of_kind.files()), None
        )
        none = "holds no .py files (hidden folders and __pycache__ are not searched)"
    if source is None:
        raise UserError(f"{shown}: {none}; {_FORMS}")
    return source


def open_sources(specs: Sequence[str], of_files: Mapping[str, str] = {}) -> RecordSource:
    """Open one source of all that `specs` name, in their order.

    Args: specs, of_files: one or more, each as for `open_source`.
    Returns: the source itself if there is only one.
    Raises: UserError as `open_source` does; UsageError if there are none, two have the same name, which would make
        their rows alike, or `of_files` has hyperparameters, but there are no files to which they apply.
    """
    sources = [open_source(spec, of_files) for spec in specs]
    if "prm" in of_files and not any(isinstance(source, PythonFolder) for source in sources):
        raise UsageError("--prm: is for the files of a folder, and no SOURCE is one; leave it out")
    if not sources:
        raise UsageError("no SOURCE; name at least one")
    names = [source.name for source in sources]
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise UsageError(f"{twice}: two sources have this name; leave one out, or give its file or folder another name")
    return sources[0] if len(sources) == 1 else SeveralSources(sources)


class SeveralSources(RecordSource):
    """The rows of several sources. A code in two of them becomes one record, as if it occurred twice in one."""

    def __init__(self, parts: Sequence[RecordSource]) -> None:
        super().__init__(" + ".join(part.name for part in parts))
        self._parts = tuple(parts)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of each part, with the license that it states."""
        for part in self._parts:
            own = part.license(None)
            for batch in part.batches():
                index = batch.schema.get_field_index("license")
                licenses = batch["license"]
                if own != NOASSERTION:
                    licenses = pc.if_else(batch["nn_code"].is_valid(), licenses.fill_null(own), licenses)
                yield batch.set_column(index, batch.schema.field(index), licenses)

    def inputs(self) -> list[Input]:
        """Return the inputs of each part."""
        return [item for part in self._parts for item in part.inputs()]

    def files(self) -> list[Path]:
        """Return the files of each part."""
        return [file for part in self._parts for file in part.files()]

    def license(self, stated: str | None) -> str:
        """Return the combined license of all parts."""
        return combine_licenses(part.license(stated) for part in self._parts)


def find_source_parents(source: RecordSource) -> list[Parent]:
    """Find the finished folders whose manifests list the files of a source, each once, by kind, name and digest.

    A folder is not a parent if a file differs from its manifest: its rows then come from elsewhere.
    """
    files = [file.absolute() for file in source.files()]
    folders = sorted({folder for file in files for folder in file.parents if (folder / FILE_NAME).is_file()})
    parents = {describe_parent(folder) for folder in folders if _lists(folder, files)}
    return sorted(parents, key=lambda parent: (parent.kind, parent.name, parent.sha256))


def _lists(folder: Path, files: list[Path]) -> bool:
    """Return True if a finished folder lists some of these files, with matching digests."""
    try:
        stated = {folder / item.path: item.sha256 for item in read_manifest(folder).outputs}
    except UserError:  # other programs use this file name too
        return False
    listed = [file for file in files if file in stated]
    for file in listed:
        if not file.is_file() or sha256_file(file) != stated[file]:
            name = file.relative_to(folder).as_posix()
            note(f"{folder}: {name} differs from its {FILE_NAME}; the folder is not named as a parent")
            return False
    return bool(listed)
