"""Curation in tasks against the in-process way, byte by byte; tasks that are killed; what a user may get wrong."""

import gc
import hashlib
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("datatrove", reason="needs the extra cluster")

from curate.compute.graphs import GraphTrace, NetworkTracer
from curate.model import splits
from curate.model.options import CurateOptions
from curate.run import pipeline
from curate.run.pipeline import curate
from curate.run.tasks import Work, list_steps, source_step
from curate.sources import open_source
from curate.sources.rows import to_batch
from lemur_core.distributed.exchange import Exchange, Step, begin, run_part
from lemur_core.graphs.graph import FORM, TORCH
from manifests.folders.manifest import package_versions
from tests.curate.test_graphs import rows as graph_rows
from tests.curate.test_rights import extraction

Row = dict[str, Any]
LEMUR = str(Path(sys.executable).with_name("lemur"))


@pytest.fixture(scope="module")
def rows(network: Callable[..., str], warm: Callable[..., None]) -> list[Row]:
    """Chains of small changes, same networks in other words, some broken."""
    dice = random.Random(3)
    codes = []
    for size in (14, 24, 40):
        blocks = [dice.randrange(12) for _ in range(size)]
        for step in range(14):
            blocks = [*blocks]
            blocks[step % size] = (blocks[step % size] + 1 + step) % 12
            codes += [network(blocks), network(blocks, comment="the same"), network(blocks, width=96, variable="h")]
        codes.append(network(dice.sample(blocks, size)))
    codes += ["def broken(:\n    pass\n", "x = 1\n", "y = 'text'\n"]
    warm(codes)
    return [
        {
            "nn": f"{dice.choice(['ga', 'rag', 'UNet'])}-{number}",
            "nn_code": code,
            "task": "img-classification",
            "dataset": "cifar-10",
            "metric": "acc",
            "epoch": epoch,
            "accuracy": dice.choice([dice.random(), 0.5, None]),
            "duration": 1.0,
            "prm": "{}",
        }
        for number, code in enumerate(codes)
        for epoch in range(1, 1 + dice.randrange(1, 4))
    ]


def tables(folder: Path) -> dict[str, bytes]:
    """Every file of a snapshot but the manifest, which tells seconds."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def run_all(every_step: Iterable[Step], *, in_new_process: bool = False) -> None:
    """Run each rank in its turn, the last one first; apart: as in another process, which has but what was put."""
    for step in every_step:
        for rank in reversed(range(step.tasks)):
            run_part(pickle.loads(pickle.dumps(step)) if in_new_process else step, rank)


def read_source(plan: Work, source: Any) -> None:
    """Run what the command runs before the tasks."""
    run_part(source_step(plan, source, source.digests()), 0)


def queue_here(plan: Work, out: Path) -> None:
    """Run what would be queued on Slurm."""
    run_all(list_steps(plan, out, False, queued=True), in_new_process="://" in plan.files.address)


@pytest.fixture(scope="module")
def origins(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """A library with one of the codes."""
    codes = [("a@1::a.Net", "AGPL-3.0", rows[0]["nn_code"])]
    return (extraction(tmp_path_factory.mktemp("origins") / "library", codes),)


@pytest.fixture(scope="module")
def expected(
    rows: list[Row], origins: tuple[Path, ...], memory_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """What curation writes at once, without graphs."""
    out = tmp_path_factory.mktemp("at once") / "out"
    curate(memory_source(rows, 20), out, CurateOptions(graph="off"), origins=origins, jobs=1)
    return tables(out)


Same = Callable[[int, str], None]


@pytest.fixture
def same_in_tasks(
    rows: list[Row], origins: tuple[Path, ...], expected: dict[str, bytes], memory_source: Any, tmp_path: Path
) -> Same:
    """Curates in this number of tasks through a work folder, and compares."""

    def run(parts: int, work: str) -> None:
        source, out = memory_source(rows, 20), tmp_path / f"in {parts} tasks"
        plan = Work(Exchange(work), CurateOptions(graph="off"), parts, (), origins)
        read_source(plan, source)
        queue_here(plan, out)
        assert tables(out) == expected

    return run


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 7])
def test_tasks_write_the_same_bytes(parts: int, same_in_tasks: Same, tmp_path: Path) -> None:
    same_in_tasks(parts, str(tmp_path / "work"))


def test_tasks_exchange_files_through_an_address(
    same_in_tasks: Same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    same_in_tasks(2, f"memory://{tmp_path}/work")
    gc.collect()
    assert list(scratch.iterdir()) == []


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of an S3 server on this machine, which other processes reach too."""
    moto, s3fs = (pytest.importorskip(name, reason="needs s3fs and moto[server]") for name in ("moto.server", "s3fs"))
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"ENDPOINT_URL": f"http://{host}:{port}", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
    yield "s3://bucket"
    server.stop()


@pytest.mark.slow
def test_tasks_exchange_files_through_s3(bucket: str, same_in_tasks: Same) -> None:
    for parts in (1, 7):
        same_in_tasks(parts, f"{bucket}/{parts}")


@pytest.mark.slow
def test_a_task_killed_at_an_address(bucket: str, file: Path, tmp_path: Path) -> None:
    kill_and_go_on(file, f"{bucket}/work", "features", tmp_path)


def test_supports_are_met_as_in_one_process(rows: list[Row], memory_source: Any, tmp_path: Path) -> None:
    options = CurateOptions(graph="off", min_per_prefix=9, prefer=("rag",), seed=7, lexical_threshold=0.8)
    source = memory_source(rows)
    curate(source, tmp_path / "at once", options, jobs=1)
    plan = Work(Exchange(tmp_path / "work"), options, 3)
    read_source(plan, source)
    queue_here(plan, tmp_path / "in tasks")
    assert tables(tmp_path / "in tasks") == tables(tmp_path / "at once")


class _Drawn:
    """Stands for the sandbox: graphs drawn by the code, of which some are equal, some up to widths, some missing.

    Numbers are drawn, too: some join graphs, some part one, some are missing.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []  # how many networks were traced at a time

    def run(self, _: NetworkTracer, payloads: Mapping[int, dict[str, Any]]) -> Iterator[tuple[int, GraphTrace]]:
        if payloads:
            self.asked.append(len(payloads))
        for number, payload in payloads.items():
            drawn = int(hashlib.sha256(payload["code"].encode()).hexdigest(), 16)
            graph, widths, weights = (hashlib.sha256(str(drawn % count).encode()).hexdigest() for count in (24, 6, 3))
            found = {"graph": graph, "graph_widths": widths, "weights": weights, "torch": TORCH, "form": FORM}
            yield number, GraphTrace({"error": "forward_failed: drawn"} if drawn % 24 == 0 else found)

    def measure(
        self,
        _: NetworkTracer,
        records: Mapping[int, Any],
        traces: Mapping[int, GraphTrace],
        code_of: Callable[[int], str],
    ) -> Iterator[tuple[int, str | None]]:
        for number in records:
            assert traces[number].graph is not None
            drawn = int(hashlib.sha256(code_of(number).encode()).hexdigest(), 16)
            behavior = hashlib.sha256(f"numbers {drawn % 48}".encode()).hexdigest()
            yield number, None if drawn % 7 == 0 else behavior

    def take_over(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(NetworkTracer, "run", lambda tracer, payloads, **_: self.run(tracer, payloads))
        patch.setattr(NetworkTracer, "measure_records", lambda *arguments: self.measure(*arguments))


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["survivors", "all", "keep-different"])
def test_graphs_in_tasks_write_the_same_bytes(
    graph: Any, rows: list[Row], memory_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Survivors are traced three times, as what a graph removes lets its neighbors in; two times where queued."""
    drawn = _Drawn()
    drawn.take_over(monkeypatch)
    monkeypatch.setattr(pipeline, "write_report", lambda *_: None)
    options = CurateOptions(graph=graph)
    source = memory_source(rows, 20)
    curate(source, tmp_path / "at once", options, jobs=1)
    expected = tables(tmp_path / "at once")
    traced = drawn.asked
    assert len(traced) == (3 if graph == "survivors" else 1)
    for parts, queued in ((1, False), (7, False), (2, True)):
        folder = tmp_path / f"{parts} {queued}"
        plan = Work(Exchange(folder / "work"), options, parts)
        read_source(plan, source)
        drawn.asked = []
        run_all(list_steps(plan, folder / "out", False, queued=queued))
        assert tables(folder / "out") == expected
        assert sum(drawn.asked) == sum(traced)
        passes = 1 if graph != "survivors" else 2 if queued else 3
        assert len(list((folder / "work" / "graphs").iterdir())) == passes


@pytest.mark.parametrize(("graph", "parts"), [("off", 2), ("survivors", 7), ("keep-different", 1)])
def test_a_delta_in_tasks_is_the_same(
    graph: Any, parts: int, rows: list[Row], memory_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = _Drawn()
    drawn.take_over(monkeypatch)
    monkeypatch.setattr(pipeline, "write_report", lambda *_: None)
    monkeypatch.setattr(splits, "SPLIT_RATIOS", {"train": 0.4, "validation": 0.3, "test": 0.3})  # of few records
    options = CurateOptions(graph=graph, lexical_threshold=1.0, structural_threshold=1.0)
    base, first, new = (
        [row for row in rows if int(row["nn"].rpartition("-")[2]) % 43 // 3 in places]  # along the chains
        for places in ((0, 1, 12, 13, 14), (4, 9), (2, 3, 5, 6, 7, 8, 10, 11))
    )
    parents = (tmp_path / "base", tmp_path / "delta")
    curate(memory_source(base), parents[0], options, jobs=1)
    curate(memory_source(first), parents[1], options, against=parents[:1], jobs=1)
    source = memory_source([*new, *base[:9]], 20)
    curate(source, tmp_path / "at once", options, against=parents, jobs=1)
    plan = Work(Exchange(tmp_path / "work"), options, parts, parents)
    read_source(plan, source)
    run_all(list_steps(plan, tmp_path / "in tasks", False, queued=False))
    assert tables(tmp_path / "in tasks") == tables(tmp_path / "at once")
    stages = pq.read_table(tmp_path / "at once" / "decisions.parquet")["stage"].to_pylist()
    assert {None, "exact"} < {*stages}
    assert ("leak" in stages) == (graph != "keep-different")


@pytest.mark.slow
def test_graphs_decide_as_in_one_process(memory_source: Any, tmp_path: Path) -> None:
    """Real ones; those of the test above are drawn."""
    options = CurateOptions(graph="survivors")
    source = memory_source(graph_rows())
    curate(source, tmp_path / "at once", options, jobs=1)
    assert pq.read_table(tmp_path / "at once" / "decisions.parquet")["stage"].to_pylist().count("graph") == 1
    plan = Work(Exchange(tmp_path / "work"), options, 2)
    read_source(plan, source)
    queue_here(plan, tmp_path / "in tasks")
    assert tables(tmp_path / "in tasks") == tables(tmp_path / "at once")


def test_a_work_folder_of_another_run_is_refused(
    rows: list[Row], lemur_here: Callable[..., Any], tmp_path: Path, file: Path
) -> None:
    options = asdict(CurateOptions(graph="off"))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    asked = {"sources": [str(file)], "inputs": {file.name: digest}, "options": options, "tasks": 2, "against": []}
    asked["versions"] = package_versions()
    begin(Exchange(tmp_path / "work"), asked)
    given = ("curate", file, "--graph", "off", "--out", "out", "--executor", "local", "--work", "work")
    for further, differs in ((("--tasks", 2, "--seed", 1), "options (seed)"), (("--tasks", 3), "tasks")):
        done = lemur_here(*given, *further, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.rstrip().endswith(
            f"holds a run that differs in {differs}; choose another --work, or remove it"
        )
    done = lemur_here("curate", file, "--out", "out", "--tasks", 2, cwd=tmp_path)
    assert (done.returncode, "without --executor" in done.stderr) == (2, True)
    for address, why in (("memory://a", "OSError: it is of one process alone"), ("no://a", "Protocol not known: no")):
        done = lemur_here("curate", file, "--out", "out", "--executor", "local", "--work", address, cwd=tmp_path)
        told = done.stderr.splitlines()[-1]
        assert (done.returncode, told.startswith(f"lemur: --work {address}: cannot be"), why in told) == (1, True, True)
    done = lemur_here("curate", file, "--out", "out", "--executor", "local", "--profile", "nn-dup", cwd=tmp_path)
    assert (done.returncode, "only profile strict" in done.stderr) == (2, True)


@pytest.fixture(scope="module")
def file(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    table = to_batch(rows).drop_columns(["problem", "arch_uid"])
    pq.write_table(pa.Table.from_batches([table]), path)
    return path


def start(file: Path, work: str, folder: Path) -> "subprocess.Popen[str]":
    arguments = ["curate", str(file), "--graph", "off", "--out", "out", "--executor", "local", "--tasks", "3"]
    return subprocess.Popen(
        [LEMUR, *arguments, "--workers", "2", "--work", work],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines_until(process: "subprocess.Popen[str]", step: str) -> Iterator[str]:
    assert process.stderr is not None
    for line in process.stderr:
        yield line
        if line.startswith(f"{step}:"):
            return


@pytest.mark.slow
def test_a_killed_task_ends_the_run_and_the_next_one_goes_on(file: Path, tmp_path: Path) -> None:
    """At other moments: `test_cluster_killed.py`."""
    kill_and_go_on(file, "work", "features", tmp_path)


def kill_and_go_on(file: Path, work: str, step: str, tmp_path: Path) -> None:
    """Run in tasks through a work folder, kill one after a step, run again, compare with the in-process way."""
    process = start(file, work, tmp_path)
    list(lines_until(process, step))
    workers = [one for one in psutil.Process(process.pid).children() if "spawn_main" in " ".join(one.cmdline())]
    random.choice(workers).kill()
    killed = time.monotonic()
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    _, told = process.communicate()
    watchdog.cancel()
    assert time.monotonic() - killed < 30
    assert process.returncode == 1
    (line,) = [line for line in told.splitlines() if "done" not in line or "killed" in line]
    assert "a task was killed; not done of" in line
    assert line.endswith("start again to resume")
    assert not psutil.pid_exists(process.pid)
    assert not any(one.is_running() for one in workers)
    again = start(file, work, tmp_path)
    _, told = again.communicate(timeout=300)
    assert again.returncode == 0, told
    assert "features: done before" in told
    curate(open_source(str(file)), tmp_path / "at once", CurateOptions(graph="off"), jobs=1)
    assert tables(tmp_path / "out") == tables(tmp_path / "at once")
