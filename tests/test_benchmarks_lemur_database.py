"""A database that nn-dataset's own code makes of released files has the rows that are read from the files themselves."""

import sys
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.lemur_database import make
from curate.sources import open_source
from curate.sources.lemur import LemurRelease, stat_files
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError


def chosen(name: str) -> bool:
    """A hundredth of the folders of statistics, and all of the networks of a few tasks."""
    return zlib.crc32(name.rpartition("/")[0].encode()) % 100 == 0


pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture(scope="module")
def made(lemur_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zstandard", reason="nn-dataset imports it")
    target = tmp_path_factory.mktemp("made") / "ab.nn.db"
    try:
        make(target, sys.executable, chosen)
    except RetryableError as error:
        pytest.skip(f"needs nn-dataset, which pip could not fetch: {error}")
    return target


def test_database_and_release_have_the_same_rows(made: Path, lemur_wheel: Path) -> None:
    sources = (open_source(str(made)), release_of(lemur_wheel, "2.1.0.dev2"))
    found, release = (pa.Table.from_batches(list(source.batches())) for source in sources)
    assert found.num_rows > 800
    assert found.to_pylist() == release.to_pylist()
    assert found.column("arch_uid").null_count == found.num_rows  # the ids are MD5s of the texts


def release_of(wheel: Path, version: str) -> LemurRelease:
    """A release of the chosen files alone, in the cache as if it had been fetched."""
    target = cache_folder("lemur", version) / f"nn_dataset-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(target, "w") as part:
        statistics = set(stat_files(whole))
        for name in whole.namelist():
            if name not in statistics or chosen(name):
                part.writestr(name, whole.read(name))
    return LemurRelease(version)
