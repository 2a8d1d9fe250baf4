"""A database that nn-dataset's own code makes of released files has the rows that are read from the files themselves."""

import sys
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

sys.path.append(str(Path(__file__).parent.parent))  # the benchmarks are no part of what is installed

from benchmarks.lemur_database import add_arch_uid, grow, make
from curate.sources import open_source
from curate.sources.lemur import read_codes, read_stats, stat_files
from lemur_core.files.errors import RetryableError

COLUMNS = ["nn", "task", "dataset", "metric", "epoch", "accuracy", "duration", "prm"]


def chosen(name: str) -> bool:
    """A hundredth of the folders of statistics, and all of the networks of a few tasks."""
    return zlib.crc32(name.rpartition("/")[0].encode()) % 100 == 0


@pytest.fixture(scope="module")
def made(lemur_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zstandard", reason="nn-dataset imports it")
    target = tmp_path_factory.mktemp("made") / "ab.nn.db"
    try:
        make(target, sys.executable, chosen)
    except RetryableError as error:
        pytest.skip(f"needs nn-dataset, which pip could not fetch: {error}")
    return target


def table_of(source: str) -> pa.Table:
    return pa.Table.from_batches(list(open_source(source).batches()))


@pytest.mark.slow
@pytest.mark.network
def test_database_and_release_have_the_same_rows(made: Path, lemur_wheel: Path) -> None:
    with zipfile.ZipFile(lemur_wheel) as archive:
        codes, files = read_codes(archive), [name for name in stat_files(archive) if chosen(name)]
    rows, texts = read_stats(lemur_wheel, files, codes)
    found = table_of(str(made))
    assert found.num_rows > 800
    assert found.select(COLUMNS).to_pylist() == rows.select(COLUMNS).to_pylist()
    assert found.column("nn_code").to_pylist() == texts.column("code").take(rows.column("code")).to_pylist()
    assert found.column("arch_uid").null_count == found.num_rows  # the ids are MD5s of the texts


@pytest.mark.slow
@pytest.mark.network
def test_grown_and_with_identities(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "grown.db"
    path.write_bytes(made.read_bytes())
    (tmp_path / "peer.py").write_text("def arch_uid(code):\n    return f'{len(code):032x}'\n")
    before = table_of(str(path))
    networks = len(set(before.column("nn").to_pylist()))
    add_arch_uid(path, tmp_path / "peer.py")
    grow(path, networks + 50, 12_000)
    after = table_of(str(path))
    named = {
        name: (code, uid)
        for name, code, uid in zip(*(after.column(n).to_pylist() for n in ("nn", "nn_code", "arch_uid")), strict=True)
    }
    assert len(named) == networks + 50
    assert all(uid == f"{len(code):032x}" for name, (code, uid) in named.items() if "-copy" not in name)
    assert all(code.startswith("# copy ") for name, (code, _) in named.items() if "-copy" in name)
    assert after.num_rows > 2 * before.num_rows
    assert all(prm != "{}" for prm in after.column("prm").to_pylist())
