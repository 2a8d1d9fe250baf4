"""The index survives kills, damage, locks and planted data; it identifies files by their content alone."""

import os
import pickle
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from extract.arguments.hints import read_usage
from extract.resolve import Policy
from extract.resolve import index as index_module
from extract.resolve.index import UNREADABLE, VERSION, FactsIndex
from extract.sources import PackageSource, open_source
from lemur_core.files.cache import seal
from lemur_core.files.errors import UserError
from lemur_core.source.facts import FileFacts
from lemur_core.source.parse import parse_file
from tests.builders.servers import PLAIN_POOL, PLAIN_SUBMIT
from tests.builders.suites import read_files, read_table

ROOT = str(Path(__file__).parents[3])
TEXTS = read_files(__file__, "index.md")
TEXT = "import math\nclass A(math.B): pass\n"


@pytest.fixture
def source(tmp_path: Path) -> PackageSource:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "a.py").write_text(TEXT)
    (folder / "b.py").write_text("x = 1\n")
    (folder / "bad.py").write_text("def (:\n")
    return open_source(f"{folder}/")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.sqlite"


def load(source: PackageSource, path: Path, policy: Policy = "missing") -> dict[str, FileFacts]:
    with FactsIndex(path, policy=policy) as index:
        return {file.path: index.facts(source, file) for file in source.files}


def add_all(source: PackageSource, path: Path, policy: Policy = "missing") -> tuple[int, int]:
    """Return how many files were in the index, and how many were parsed."""
    with FactsIndex(path, policy=policy) as index:
        index.add([(source, file) for file in source.files])
        return index.hits, index.parsed


def test_a_parser_that_is_killed_between_two_files_is_replaced(
    source: PackageSource, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "process_pool", PLAIN_POOL)
    monkeypatch.setattr(index_module, "submit", PLAIN_SUBMIT)
    first, second = source.files[:2]
    others = set(psutil.Process().children())
    with FactsIndex(path) as index:
        index.facts(source, first)
        started = set(psutil.Process().children()) - others
        (parser,) = (child for child in started if "spawn_main" in " ".join(child.cmdline()))
        parser.kill()
        time.sleep(1)  # until the pool knows
        assert index.facts(source, second) == parse_file(b"x = 1\n")


@pytest.mark.parametrize("at_once", [True, False])
def test_a_file_that_exhausts_the_parser_is_a_fault(source: PackageSource, path: Path, at_once: bool) -> None:
    (source.root / "minus.py").write_text("x = " + "-" * 100_000 + "1\n")
    (source.root / "deep.py").write_text("x = y" + ".a" * 900 + "\n")
    source = open_source(f"{source.root}/")
    files = [(source, file) for file in source.files]
    with FactsIndex(path) as index:
        if at_once:
            index.add(files)
        read = {file.path: index.facts(source, file) for _, file in files}
        faults = {file.path: why for _, file, why in index.faults(files)}
        assert read_usage(index, source, next(file for file in source.files if file.path == "minus.py")).classes == {}
    assert read["a.py"] == parse_file(TEXT.encode())
    assert [path for path, facts in read.items() if facts is UNREADABLE] == ["bad.py", "deep.py", "minus.py"]
    assert faults.keys() == {"bad.py", "deep.py", "minus.py"}
    assert faults["deep.py"] == "nested 902 levels deep, more than 150"


def test_a_script_without_a_main_guard_is_an_error_and_stores_no_fault(tmp_path: Path, path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TEXTS["SCRIPT"])
    (tmp_path / "project").mkdir()
    (tmp_path / "project/net.py").write_text("X = 1\n")
    command = [sys.executable, script, tmp_path / "project", path]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ROOT})
    assert done.returncode == 1
    assert 'put what runs under `if __name__ == "__main__":`' in done.stderr
    project = open_source(str(tmp_path / "project"))
    with FactsIndex(path) as index:
        index.add([(project, file) for file in project.files])
        assert index.faults([(project, file) for file in project.files]) == []


def test_policies(source: PackageSource, path: Path) -> None:
    assert add_all(source, path, "skip") == (0, 0)
    with pytest.raises(UserError, match=r"a\.py: not in the index .*--index missing"):
        load(source, path, "skip")
    assert add_all(source, path) == (0, 3)
    assert add_all(source, path) == (3, 0)
    assert add_all(source, path, "force") == (0, 3)
    assert add_all(source, path, "skip") == (0, 0)
    assert load(source, path, "skip")["b.py"].statements
    for policy, known in (("missing", None), ("missing", b"value"), ("force", None)):
        with FactsIndex(path, policy=policy) as index:  # type: ignore[arg-type]
            assert index.recall("key") == known
            index.remember("key", b"value")


def test_a_changed_file_is_another_and_a_moved_one_is_the_same(source: PackageSource, path: Path) -> None:
    add_all(source, path)
    (source.root / "b.py").rename(source.root / "moved.py")
    assert add_all(open_source(f"{source.root}/"), path) == (3, 0)
    (source.root / "a.py").write_text("y = 2\n")
    changed = open_source(f"{source.root}/")
    assert add_all(changed, path) == (2, 1)
    assert [s.binds for s in load(changed, path)["a.py"].statements] == [("y",)]
    assert load(source, path)["a.py"] == parse_file(TEXT.encode())


def test_what_is_no_python_is_reported(source: PackageSource, path: Path) -> None:
    for _ in range(2):
        with FactsIndex(path) as index:
            index.add([(source, file) for file in source.files])
            facts = {file.path: index.facts(source, file) for file in source.files}
            (bad,) = [file for file in source.files if file.path == "bad.py"]
            told = index.faults([(source, file) for file in source.files])
            assert told == [(source, bad, "line 1: invalid syntax")]
            assert facts["bad.py"].statements == ()
            assert facts["a.py"].statements


def set_facts(path: Path, data: bytes) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE facts SET facts = ? WHERE error IS NULL", (data,))
    database.close()


class Planted:
    """A pickle that calls a function when loaded."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def facts_global(name: str) -> bytes:
    return b"clemur_core.source.facts\n" + name.encode() + b"\n"


PLANTS = read_table(__file__, "index.md", "Plants", globals() | {"pickle": pickle})


@pytest.mark.parametrize("case", PLANTS)
def test_stored_facts_that_are_torn_or_planted_are_made_anew(source: PackageSource, path: Path, case: str) -> None:
    mark = path.parent / "mark"
    add_all(source, path)
    set_facts(path, seal(PLANTS[case](mark)))
    assert load(source, path)["a.py"] == parse_file(TEXT.encode())
    assert not mark.exists()


def test_facts_of_another_version_are_not_used(source: PackageSource, path: Path) -> None:
    add_all(source, path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE facts SET version = '0:' || version, facts = x'00'")
    database.close()
    assert load(source, path)["a.py"] == parse_file(TEXT.encode())
    assert VERSION.endswith(f"{sys.version_info[0]}.{sys.version_info[1]}")


def test_a_reader_does_not_wait_for_a_writer(source: PackageSource, path: Path) -> None:
    add_all(source, path)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM facts")
    try:
        assert load(source, path)["a.py"].statements
        assert add_all(source, path) == (3, 0)
    finally:
        writer.execute("ROLLBACK")
        writer.close()


def many_files(folder: Path, count: int) -> PackageSource:
    """Files of which every seventh is no Python."""
    folder.mkdir()
    for number in range(count):
        (folder / f"m{number}.py").write_text(f"x{number} = {number}\n" if (number + 1) % 7 else f"def ({number}:\n")
    return open_source(f"{folder}/")


def test_many_files_are_parsed_by_several_processes_and_two_at_once_add_the_same(
    tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = many_files(tmp_path / "more", 60)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: add_all(source, path), range(2)))
    assert [sum(each) for each in found] == [60, 60]
    assert add_all(source, path) == (60, 0)
    assert "damaged" not in capsys.readouterr().err
    assert load(source, path)["m1.py"].statements[0].binds == ("x1",)
