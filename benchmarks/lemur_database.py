"""LEMUR's database as nn-dataset itself makes it: `python -m benchmarks.lemur_database OUT.db [--networks N --runs N]`.

The code and schema are those of nn-dataset 2.2.11, the files those of release 2.1.0, the last that carries them: what
`ab.nn.util.db.Write` does when it is first imported where statistics lie beside it. It runs in a process of its own.
`--arch-uid FILE` adds the column that a later nn-dataset has, worked out by the function `arch_uid` of that file.

With `--networks` and `--runs` the database is grown to that size by copies: networks whose text is changed in one
comment, and runs of them with durations of their own, with their hyperparameters as often as nn-dataset writes them.

`python -m benchmarks.lemur_database --read FILE` prints what reading all rows of a database costs.
"""

import argparse
import importlib.util
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from curate.sources import open_source
from curate.sources.lemur import LemurRelease
from lemur_core.files.cache import cache_folder
from lemur_core.files.pip import download
from manifests.folders.manifest import peak_memory

CODE_VERSION = "2.2.11"
_CODE = ("ab/__init__.py", "ab/nn/__init__.py", "ab/nn/util/", "nn_dataset-")
_STATS = "ab/nn/stat/train/"
_FILES = ("ab/nn/nn/", "ab/nn/metric/", "ab/nn/transform/", _STATS)


def main() -> None:
    """Make a database, or measure how one is read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--read", action="store_true", help="read FILE instead of making it")
    parser.add_argument("--arch-uid", type=Path, metavar="FILE", help="a file with nn-dataset's function arch_uid")
    parser.add_argument("--networks", type=int, help="grow the database to as many networks")
    parser.add_argument("--runs", type=int, help="and as many runs")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has nn-dataset's requirements")
    given = parser.parse_args()
    if given.read:
        read(given.file)
        return
    if not given.file.exists():
        make(given.file, given.python)
    if given.arch_uid is not None:
        add_arch_uid(given.file, given.arch_uid)
    if given.networks is not None:
        grow(given.file, given.networks, given.runs)
    with sqlite3.connect(given.file) as connection:
        counts = [connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in ("nn", "stat", "prm")]
    print(f"{given.file}: {counts[0]:,} networks, {counts[1]:,} runs, {counts[2]:,} hyperparameters")


def make(target: Path, python: str, take: Callable[[str], bool] = lambda _: True) -> None:
    """Have nn-dataset build its database from its released files.

    Args:
        take: whether a file of statistics is to go into it, by its name in the release.
    """
    release = LemurRelease()
    release.inputs()  # fetches the wheel
    (wheel,) = cache_folder("lemur", release.version).glob("*.whl")
    with tempfile.TemporaryDirectory(dir=target.absolute().parent) as scratch:
        work = Path(scratch)
        fetched = work / "fetched"
        fetched.mkdir()
        code = download("nn-dataset", f"=={CODE_VERSION}", fetched)
        for archive, wanted in ((code, _CODE), (wheel, _FILES)):
            with zipfile.ZipFile(archive) as opened:
                names = (name for name in opened.namelist() if name.startswith(wanted))
                opened.extractall(work, [name for name in names if not name.startswith(_STATS) or take(name)])
        environment = {**os.environ, "PYTHONPATH": str(work)}
        subprocess.run(
            [python, "-c", "import ab.nn.util.db.Write"], cwd=work, env=environment, check=True, stdout=sys.stderr
        )
        shutil.move(work / "db" / "ab.nn.db", target)


def add_arch_uid(path: Path, module: Path) -> None:
    """Add what `arch_uid` says of each network; nothing where it fails."""
    spec = importlib.util.spec_from_file_location("arch_uid", module)
    assert spec is not None
    assert spec.loader is not None
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE nn ADD COLUMN arch_uid TEXT")
        for name, code in connection.execute("SELECT name, code FROM nn").fetchall():
            try:
                uid = peer.arch_uid(code)
            except Exception:  # noqa: BLE001 (a peer's function may raise anything)
                uid = None
            connection.execute("UPDATE nn SET arch_uid = ? WHERE name = ?", (uid, name))


def grow(path: Path, networks: int, runs: int) -> None:
    """Add copies of networks, then runs of all of them in turn, until there are as many."""
    with sqlite3.connect(path) as connection:
        known = connection.execute("SELECT name, code FROM nn ORDER BY name").fetchall()
        for number in range(max(0, networks - len(known))):
            name, code = known[number % len(known)]
            copy = (f"{name}-copy{number}", f"# copy {number}\n{code}", f"{number:032x}")
            connection.execute("INSERT INTO nn (name, code, id) VALUES (?, ?, ?)", copy)
        names = [name for (name,) in connection.execute("SELECT name FROM nn ORDER BY rowid DESC")]
        (there,) = connection.execute("SELECT COUNT(*) FROM stat").fetchone()
        patterns = connection.execute("SELECT * FROM stat ORDER BY id LIMIT 100000").fetchall()
        columns = [column[1] for column in connection.execute("PRAGMA table_info(stat)")]
        for number, name in zip(range(max(0, runs - there)), itertools.cycle(names)):
            row = dict(zip(columns, patterns[number % len(patterns)], strict=True))
            given = connection.execute("SELECT DISTINCT name, value FROM prm WHERE uid = ?", (row["prm"],)).fetchall()
            uid = f"grown-{number // 5}"  # the epochs of a run share it
            row |= {"id": f"{number:032x}", "nn": name, "duration": number, "prm": uid}
            connection.executemany("INSERT INTO prm VALUES (?, ?, ?)", [(uid, *value) for value in given])
            connection.execute(f"INSERT INTO stat VALUES ({', '.join('?' * len(row))})", list(row.values()))


def read(path: Path) -> None:
    """Read all rows, and say what it took."""
    started, rows, codes = time.monotonic(), 0, set()
    for batch in open_source(str(path)).batches():
        rows += batch.num_rows
        codes.update(batch.column("nn").to_pylist())
    cpu = time.process_time()
    print(
        f"{rows:,} rows of {len(codes):,} networks: {time.monotonic() - started:.1f} s, {cpu:.1f} s CPU,"
        f" {peak_memory() / 2**20:,.0f} MiB at most"
    )


if __name__ == "__main__":
    main()
