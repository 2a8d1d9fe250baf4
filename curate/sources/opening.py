"""SOURCE as written on the command line, turned into the source that reads it."""

from collections.abc import Sequence
from pathlib import Path

from curate.rows import Source
from curate.sources.csv_file import CsvFile
from curate.sources.extraction import ExtractionFolder, is_extraction
from curate.sources.folder import PythonFolder, find_files
from curate.sources.hub import HubDataset
from curate.sources.installed import InstalledLemur
from curate.sources.jsonl_file import JsonlFile
from curate.sources.parquet import ParquetFile, ParquetFolder
from curate.sources.several import join_sources
from lemur_core.files.errors import UserError

_FORMS = "SOURCE is lemur[@VERSION], installed, a .parquet/.jsonl/.csv file, a folder of .py files, or hf://datasets/OWNER/NAME"
_LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_CSV = (".csv", ".csv.gz")


def open_source(spec: str) -> Source:
    """The source that `spec` names; nothing is fetched and no row is read yet.

    A word with a meaning of its own (`lemur`, `installed`) wins over a file of that name: write `./lemur` for the file.

    Raises: UserError if `spec` is none of the forms of SOURCE, or names a path that cannot be used.
    """
    if spec == "installed":
        return InstalledLemur()
    if spec.startswith("hf://"):
        return HubDataset(spec)
    if spec == "lemur" or spec.startswith("lemur@"):
        from curate.sources.lemur_release import LemurRelease

        return LemurRelease(spec.removeprefix("lemur@")) if "@" in spec else LemurRelease()
    return _open_path(spec)


def open_sources(specs: Sequence[str]) -> Source:
    """One source of all that `specs` name, in their order.

    Raises: UserError as `open_source` does, or if two of them have one name.
    """
    return join_sources([open_source(spec) for spec in specs])


def _open_path(spec: str) -> Source:
    path = Path(spec)
    shown = spec if spec and spec.isprintable() else repr(spec)
    try:
        if not spec:
            raise FileNotFoundError
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise UserError(f"{shown}: no such file or folder; {_FORMS}") from error
    except OSError as error:
        raise UserError(f"{shown}: cannot be read: {error.strerror}; {_FORMS}") from error
    if path.is_dir():
        return _open_folder(path)
    name = path.name.lower()
    if name.endswith(".parquet"):
        return ParquetFile(path)
    if name.endswith(_LINES):
        return JsonlFile(path)
    if name.endswith(_CSV):
        return CsvFile(path)
    raise UserError(f"{shown}: unknown kind of file; {_FORMS}")


def _open_folder(folder: Path) -> Source:
    if is_extraction(folder):
        return ExtractionFolder(folder)
    if next(find_files(folder, ".py"), None) is not None:
        return PythonFolder(folder)
    if next(find_files(folder, ".parquet"), None) is not None:
        return ParquetFolder(folder)
    raise UserError(f"{folder}: holds no .py files (hidden folders and __pycache__ are not searched); {_FORMS}")
