"""Every SOURCE of `lemur curate`, as written on the command line, as a stream of Arrow record batches."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from curate.rows import InputFile, Source
from curate.sources.files import CsvFile, JsonlFile, ParquetFile
from curate.sources.folders import ExtractionFolder, ParquetFolder, PythonFolder, find_files, is_extraction
from curate.sources.services import HubDataset, InstalledLemur
from lemur_core.files.errors import UserError


class SeveralSources:
    """The rows of all parts. A code that two parts have is one record, like one that stands twice in a part."""

    def __init__(self, parts: Sequence[Source]) -> None:
        self.name = " + ".join(part.name for part in parts)
        self.parts = tuple(parts)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches of each part, as it gives them.

        Raises: UserError as the parts do.
        """
        for part in self.parts:
            yield from part.batches()

    def inputs(self) -> list[InputFile]:
        """What each part has read."""
        return [item for part in self.parts for item in part.inputs()]


def join_sources(parts: Sequence[Source]) -> Source:
    """One source of all the rows: the only part itself, where there is one.

    Raises: UserError if there is none, or two have one name: nothing would tell their rows apart.
    """
    if not parts:
        raise UserError("no SOURCE is given; name at least one")
    names = [part.name for part in parts]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise UserError(f"{twice}: two sources have this name; leave one out, or give its file or folder another name")
    return parts[0] if len(parts) == 1 else SeveralSources(parts)


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
        from curate.sources.lemur import LemurRelease

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
