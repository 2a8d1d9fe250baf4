"""A LEMUR database as SOURCE: the rows that LEMUR's own query returns of it, whatever lies in it, in little memory."""

import hashlib
import json
import sqlite3
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curate.sources import open_source
from curate.sources.lemur import read_database
from lemur_core.files.errors import UserError
from tests.builders.source_rows import error_of, read

zstandard = pytest.importorskip("zstandard", reason="nn-dataset compresses with it")

#: The tables of nn-dataset 2.2.11 that are read, as it declares their columns.
TABLES = """
    CREATE TABLE nn (name TEXT PRIMARY KEY, code TEXT NOT NULL, id TEXT NOT NULL{more});
    CREATE TABLE prm (uid TEXT NOT NULL, name TEXT NOT NULL, value OBJECT NOT NULL);
    CREATE TABLE stat (id TEXT PRIMARY KEY, accuracy REAL, epoch INTEGER, duration INTEGER, task, dataset, nn, transform,
        metric, prm);
    CREATE INDEX idx_prm_uid ON prm(uid, name, value);
    CREATE INDEX idx_nn ON stat (nn);
"""
#: What `ab.nn.api.data(only_best_accuracy=True)` asks for, in the words of this test: best of each configuration.
ORACLE = """
    SELECT s.task, s.dataset, s.metric, s.nn, s.epoch, s.accuracy, s.duration, s.prm, n.code FROM stat s
    JOIN (SELECT task, dataset, metric, nn, epoch, MAX(accuracy) AS best FROM stat GROUP BY 1, 2, 3, 4, 5) b
        ON s.task = b.task AND s.dataset = b.dataset AND s.metric = b.metric AND s.nn = b.nn AND s.epoch = b.epoch
        AND s.accuracy = b.best
    LEFT JOIN nn n ON s.nn = n.name ORDER BY s.task, s.dataset, s.metric, s.nn, s.epoch
"""
Run = tuple[Any, ...]  # nn, task, dataset, metric, epoch, accuracy, duration, transform, uid


def md5(text: str) -> str:
    return hashlib.md5("".join(text.split()).encode()).hexdigest()


def make(
    path: Path,
    codes: dict[str, Any],
    runs: Sequence[Run],
    prm: Sequence[tuple[str, str, Any]] = (),
    ids: dict[str, str] | None = None,
    more: str = "",
) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(TABLES.format(more=more))
    for name, code in codes.items():
        uid = (ids or {}).get(name, md5(code) if isinstance(code, str) else "0")
        connection.execute("INSERT INTO nn (name, code, id) VALUES (?, ?, ?)", (name, code, uid))
    for number, (nn, task, dataset, metric, epoch, accuracy, duration, transform, uid) in enumerate(runs):
        values = (f"{number:08x}", accuracy, epoch, duration, task, dataset, nn, transform, metric, uid)
        connection.execute("INSERT INTO stat VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    connection.executemany("INSERT INTO prm VALUES (?, ?, ?)", prm)
    connection.commit()
    connection.close()
    return path


def run(nn: str, accuracy: float | None = 0.5, *, epoch: int = 1, dataset: str = "cifar-10", uid: str = "u") -> Run:
    return nn, "img-classification", dataset, "acc", epoch, accuracy, 100, "norm_256", uid


def packed(path: Path, name: str = "ab.nn.zst-2.2.11") -> Path:
    """As nn-dataset compresses it: one frame whose header does not say how much is in it."""
    target = path.with_name(name)
    with path.open("rb") as file, target.open("wb") as out:
        zstandard.ZstdCompressor(level=16).copy_stream(file, out)
    return target


def test_rows_of_a_database(tmp_path: Path) -> None:
    codes = {"ga-1": "x = 1\n", "GAN": "y = 2\n"}
    runs = [run("ga-1", 0.5), run("ga-1", 0.7, uid="v"), run("ga-1", 0.7, uid="u"), run("GAN", None), run("GAN", 0.1)]
    prm = [("u", "lr", 0.1), ("u", "lr", 0.2), ("u", "lr", 0.1), ("u", "batch", 4.0), ("v", "transform", "norm_256")]
    path = make(tmp_path / "ab.nn.db", codes, runs, prm)
    before = path.read_bytes()
    same = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1, "duration": 100.0}
    empty = {"arch_uid": None, "outcomes": None, "license": None, "problem": None}
    expected = [
        {"nn": "GAN", "nn_code": "y = 2\n", "accuracy": 0.1, "prm": '{"batch": 4, "lr": 0.2}', **same, **empty},
        {"nn": "ga-1", "nn_code": "x = 1\n", "accuracy": 0.7, "prm": '{"transform": "norm_256"}', **same, **empty},
        {"nn": "ga-1", "nn_code": "x = 1\n", "accuracy": 0.7, "prm": '{"batch": 4, "lr": 0.2}', **same, **empty},
    ]
    assert read(path) == expected
    assert read(packed(path)) == expected
    assert path.read_bytes() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["ab.nn.db", "ab.nn.zst-2.2.11"]


def test_several_frames_are_one_file(tmp_path: Path) -> None:
    path = make(tmp_path / "ab.nn.db", {"a": "x = 1"}, [run("a")])
    content = path.read_bytes()
    cut = len(content) // 3
    frames = [zstandard.ZstdCompressor().compress(part) for part in (content[:cut], content[cut:])]
    (tmp_path / "two.zst").write_bytes(b"".join(frames))
    assert read(tmp_path / "two.zst") == read(path)


names = st.sampled_from(["ga-1", "ga-2", "GAN", "é", "rl-\U0001f600"])
some_runs = st.tuples(
    names,
    st.sampled_from(["img-classification", "txt-image", None]),
    st.sampled_from(["cifar-10", "coco"]),
    st.just("acc"),
    st.sampled_from([1, 2, 10]),
    st.sampled_from([None, 0.1, 0.25, 0.5]),
    st.sampled_from([None, 5, 2.5]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["u", "v"]),
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=st.lists(some_runs, min_size=1, max_size=25))
def test_rows_are_those_of_lemurs_query(tmp_path_factory: pytest.TempPathFactory, runs: list[Run]) -> None:
    path = make(tmp_path_factory.mktemp("db") / "ab.nn.db", {"ga-1": "x = 1", "GAN": "y = 2"}, runs)
    with sqlite3.connect(path) as connection:
        expected = connection.execute(ORACLE).fetchall()
    columns = ("task", "dataset", "metric", "nn", "epoch", "accuracy", "duration", "nn_code")
    if not expected:
        with pytest.raises(UserError, match=r"db: of \d+ runs? none has a value in .*, so there are no rows"):
            list(read_database(path, "db"))
        return
    found = [tuple(row[name] for name in columns) for row in read_database(path, "db")]
    told = [(*row[:7], row[8]) for row in expected]
    assert [row[:5] for row in found] == [row[:5] for row in told]  # LEMUR leaves the order of ties open
    assert sorted(found, key=repr) == sorted(
        [(*row[:6], None if row[6] is None else float(row[6]), row[7]) for row in told], key=repr
    )


def test_a_run_without_its_network_is_a_row_with_a_problem(tmp_path: Path) -> None:
    path = make(tmp_path / "ab.nn.db", {"bytes": b"x = \xff", "number": 7}, [run("gone"), run("bytes"), run("number")])
    problems = {row["nn"]: row["problem"] for row in read(path)}
    assert problems == {"gone": "nn_code is missing", "bytes": "invalid UTF-8 at byte 4", "number": None}  # TEXT: "7"


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = make(tmp_path / "ab.nn.db", {}, [])
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO nn VALUES (CAST(x'6eff' AS TEXT), CAST(x'78ff' AS TEXT), 'i')")
        connection.execute(
            "INSERT INTO stat VALUES ('1', 0.5, 1, 2, 't', 'd', CAST(x'6eff' AS TEXT), 'tr', 'm', CAST(x'75ff' AS TEXT))"
        )
        connection.execute("INSERT INTO prm VALUES (CAST(x'75ff' AS TEXT), CAST(x'ff' AS TEXT), CAST(x'fe' AS TEXT))")
    [row] = read(path)
    assert (row["nn"], row["problem"]) == ("n\\xff", "invalid UTF-8 at byte 1")
    assert json.loads(row["prm"]) == {"\\xff": "\\xfe"}


def test_older_database_without_an_index_of_hyperparameters(tmp_path: Path) -> None:
    prm = [(f"u{number}", "lr", number / 8) for number in range(50)]
    path = make(tmp_path / "ab.nn.db", {"a": "x"}, [run("a", epoch=n, uid=f"u{n}") for n in range(50)], prm)
    with_index = read(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP INDEX idx_prm_uid")
    assert read(path) == with_index
    assert json.loads(with_index[9]["prm"]) == {"lr": 9 / 8}


def test_arch_uid_is_the_id_of_a_newer_database_or_a_column_of_its_own(tmp_path: Path) -> None:
    codes = {"a": "x = 1", "b": "x  =  1 # b", "c": "def f(:", "d": "import torch\n\nx = 1\n"}
    ids, runs = {"a": "c" * 32, "b": "c" * 32, "d": ""}, [run(name) for name in codes]
    path = make(tmp_path / "ab.nn.db", codes, runs, ids=ids)
    assert {row["nn"]: row["arch_uid"] for row in read(path)} == {"a": "c" * 32, "b": "c" * 32, "c": None, "d": None}
    path = make(tmp_path / "own.nn.db", codes, runs, more=", arch_uid TEXT")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE nn SET arch_uid = ? WHERE name = 'a'", ("d" * 32,))
    assert {row["nn"]: row["arch_uid"] for row in read(path)} == {"a": "d" * 32, "b": None, "c": None, "d": None}


def test_what_is_no_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"hello, this is text\n" * 100)
    (tmp_path / "empty.db").touch()
    with sqlite3.connect(tmp_path / "songs.db") as connection:
        connection.execute("CREATE TABLE songs (name)")
    with sqlite3.connect(make(tmp_path / "renamed.db", {}, [])) as connection:
        connection.execute("ALTER TABLE nn RENAME COLUMN code TO source")
    codes = {f"n{number}": f"x = {number}\n" * 400 for number in range(60)}
    half = make(tmp_path / "half.db", codes, [run(name) for name in codes])
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    for name, said in {
        "text.db": "cannot be read as a SQLite database: file is not a database; write or fetch it again",
        "empty.db": "not a LEMUR database: it has no table 'stat'",
        "songs.db": "not a LEMUR database: it has no table 'stat'",
        "renamed.db": "not a LEMUR database: table 'nn' has no column 'code'",
        "half.db": "cannot be read as a SQLite database: database disk image is malformed; write or fetch it again",
    }.items():
        assert error_of(tmp_path / name) == f"{tmp_path / name}: {said}"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated_zst(tmp_path: Path, share: float, curator_cache: Path) -> None:
    codes = {f"n{number}": hashlib.sha512(str(number).encode()).hexdigest() * 40 for number in range(200)}
    path = packed(make(tmp_path / "ab.nn.db", codes, [run(name) for name in codes]))
    content = path.read_bytes()
    path.write_bytes(content[: max(5, int(len(content) * share))])
    before = set((curator_cache / "lemur-db").glob("*"))
    assert "ab.nn.zst-2.2.11: cannot be read: Truncated compressed stream; " in error_of(path)
    assert set((curator_cache / "lemur-db").glob("*")) == before


def test_damaged_or_foreign_zst(tmp_path: Path) -> None:
    path = packed(make(tmp_path / "ab.nn.db", {"a": "x" * 5_000}, [run("a")]))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    content[4:8] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    assert "ab.nn.zst-2.2.11: cannot be read: ZSTD decompress failed: " in error_of(path)
    other = tmp_path / "rows.jsonl.zst"
    other.write_bytes(zstandard.ZstdCompressor().compress(b'{"nn": "a"}\n' * 100))
    assert error_of(other).endswith("holds no SQLite database; name LEMUR's ab.nn.db or ab.nn.zst")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_database(tmp_path: Path) -> None:
    def peak(networks: int) -> int:
        def runs() -> Iterator[Run]:
            for number in range(networks):
                yield from (run(f"n{number}", epoch=epoch) for epoch in range(1, 21))

        codes = {f"n{number}": f"# {number}\n" + "x" * 20_000 for number in range(networks)}
        path = make(tmp_path / f"{networks}.db", codes, list(runs()))
        del codes
        tracemalloc.start()
        try:
            assert sum(batch.num_rows for batch in open_source(str(path)).batches()) == networks * 20
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(1_000) < peak(500) * 1.2


def test_a_locked_database_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "ab.nn.db", {"n": "x = 1"}, [run("n")])
    connect = sqlite3.connect
    with closing(connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite3, "connect", partial(connect, timeout=0))
        with pytest.raises(UserError) as caught:
            read(path)
    advice = "check its permissions, the space for temporary files (TMPDIR), and whether a program writes to it"
    assert str(caught.value) == f"{path}: cannot be read as a SQLite database: database is locked; {advice}"
    monkeypatch.undo()
    assert len(read(path)) == 1


@pytest.mark.parametrize(
    ("runs", "count"),
    [
        ([run("n", None), run("m", None)], "2 runs"),
        ([run("n", float("nan"))], "1 run"),
        ([run("n", None), ("n", None, "d", "acc", 1, 0.5, 1, "t", "u")], "2 runs"),
        ([], ""),
    ],
)
def test_runs_that_are_no_rows(tmp_path: Path, runs: list[Run], count: str) -> None:
    said = error_of(make(tmp_path / "ab.nn.db", {"n": "x = 1"}, runs))
    none = "none has a value in each of the columns accuracy, task, dataset, metric, nn, epoch, so there are no rows"
    assert said == f"{tmp_path}/ab.nn.db: " + (
        f"of {count} {none}" if count else "holds no rows; name a SOURCE that does"
    )


def test_a_database_out_of_proportion_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(cache))
    path = tmp_path / "bomb.zst"
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as writer:
        writer.write(b"SQLite format 3\x00")
        for _ in range(200):
            writer.write(bytes(1 << 20))
    assert path.stat().st_size < 100_000
    with pytest.raises(UserError, match=r"bomb\.zst: [0-9,]+ bytes of it unpack to more than .* not read"):
        read(path)
    assert {path.name for path in cache.rglob("*")} <= {".lemur", "lemur-db"}
