"""Rows of a released LEMUR corpus, read straight from the `nn-dataset` wheel, which is never installed or imported."""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from curate.rows import BATCH_ROWS, ROW_SCHEMA, InputFile
from curate.sources.lemur_stats import read_codes, read_stats, stat_files
from lemur_core.files.atomic import atomic_file, sha256_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.pip import AbsentError, download
from lemur_core.files.progress import note

#: The last release that carries both codes and statistics.
DEFAULT_VERSION = "2.1.0"

#: Part of the cached tables' name: a change of how a wheel is read must not meet tables read in an older way.
_TABLES_FORMAT = 1

_RELEASES = Path(__file__).with_name("lemur_releases.json")


class LemurRelease:
    """The rows that `ab.nn.api.data(only_best_accuracy=True)` of one release returns, in its order.

    The wheel is fetched once with `pip download` (the user's own index settings apply), its digest is checked against
    the one shipped here or, for a release that is newer than this tool, against the one seen first.

    Source: https://github.com/ABrain-One/nn-dataset
    """

    def __init__(self, version: str = DEFAULT_VERSION) -> None:
        self.version = version
        self.name = f"lemur@{version}"
        self._folder = cache_folder("lemur", _safe(version))
        self._input: InputFile | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows ordered by task, dataset, metric, nn, epoch; ties for the best accuracy as its database orders them.

        Raises: UserError if the release does not exist, carries no codes, or its digest is wrong.
        """
        rows, codes = self._tables()
        for start in range(0, rows.num_rows, BATCH_ROWS):
            part = rows.slice(start, BATCH_ROWS).combine_chunks()
            columns = [
                codes.take(part.column("code").combine_chunks())
                if field.name == "nn_code"
                else pa.nulls(part.num_rows, field.type)
                if field.name == "problem"
                else part.column(field.name).combine_chunks().cast(field.type)
                for field in ROW_SCHEMA
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)

    def inputs(self) -> list[InputFile]:
        """The wheel."""
        self._wheel()
        assert self._input is not None
        return [self._input]

    def _tables(self) -> tuple[pa.Table, pa.LargeStringArray]:
        wheel = self._wheel()
        assert self._input is not None
        key = f"{self._input.sha256[:16]}-v{_TABLES_FORMAT}"
        rows_file, codes_file = self._folder / f"rows-{key}.parquet", self._folder / f"codes-{key}.parquet"
        if not (rows_file.is_file() and codes_file.is_file()):
            with zipfile.ZipFile(wheel) as archive:
                codes, files = read_codes(archive), stat_files(archive)
            if not codes:
                raise UserError(
                    f"nn-dataset {self.version} carries no network codes; releases that do: {', '.join(_with_codes())}"
                )
            rows, texts = read_stats(wheel, files, codes)
            for file, table in ((codes_file, texts), (rows_file, rows)):
                with atomic_file(file) as part:
                    pq.write_table(table, part, compression="zstd")
        table = pq.read_table(codes_file)
        return pq.read_table(rows_file), table.column("code").combine_chunks()

    def _wheel(self) -> Path:
        found = sorted(self._folder.glob("*.whl"))
        wheel = found[0] if found else _download(self.version, self._folder)
        if self._input is None:
            self._input = InputFile(wheel.name, _check_digest(wheel, self.version), wheel.stat().st_size)
        return wheel


def _safe(version: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(version))
    except InvalidVersion as error:
        raise UserError(f"lemur@{version}: not a version; for example lemur@{DEFAULT_VERSION}") from error


def _known() -> dict[str, dict[str, str | int]]:
    loaded: dict[str, dict[str, str | int]] = json.loads(_RELEASES.read_text(encoding="utf-8"))
    return loaded


def _with_codes() -> list[str]:
    return [version for version, facts in _known().items() if facts["codes"]]


def _check_digest(wheel: Path, version: str) -> str:
    digest = sha256_file(wheel)
    seen = wheel.with_suffix(".sha256")
    expected = _known().get(version, {}).get("sha256") or (seen.read_text().strip() if seen.is_file() else digest)
    if digest != expected:
        wheel.unlink()
        raise UserError(
            f"{wheel.name}: SHA-256 is {digest[:16]}…, expected {str(expected)[:16]}…; the damaged file was removed "
            "from the cache: run again to fetch it anew"
        )
    if not seen.is_file():
        with atomic_file(seen) as part:
            part.write_text(digest + "\n", encoding="utf-8")
    return digest


def _download(version: str, folder: Path) -> Path:
    facts = _known().get(version)
    if facts is not None and not facts["codes"]:
        raise UserError(f"nn-dataset {version} carries no network codes; releases that do: {', '.join(_with_codes())}")
    size = f" ({int(facts['bytes']) / 1e6:.0f} MB)" if facts else ""
    note(f"fetching nn-dataset {version}{size} with pip download")
    part = Path(tempfile.mkdtemp(prefix=".download-", dir=folder))
    try:
        wheel = download("nn-dataset", f"=={version}", part)
        target = folder / wheel.name
        wheel.replace(target)
        return target
    except AbsentError as error:
        known = ", ".join(_with_codes())
        raise UserError(f"nn-dataset {version}: no such release; releases with network codes: {known}") from error
    except UserError as error:
        raise RetryableError(f"nn-dataset {version} could not be fetched with pip: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
