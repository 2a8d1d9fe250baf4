"""Finished work is used for the same plan alone, and only if it is complete; arrays of Slurm; locks; `lemur status`."""

import json
import multiprocessing
import os
import pickle
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session

pytest.importorskip("datatrove", reason="needs the extra cluster")

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.run.tasks import Work, curate_in_tasks, list_steps, source_step
from curate.sources import open_sources
from curate.sources.rows import RecordSource
from curate.sources.services import HubDataset
from lemur_core.distributed.exchange import Exchange, Step, is_done, run_part
from lemur_core.distributed.status import read_status, status_text
from lemur_core.files.atomic import own
from lemur_core.files.errors import UsageError, UserError
from manifests.options import DistributedOptions
from manifests.publish.hub import Hub
from tests.builders.hub_server import HubServer
from tests.builders.slurm import FakeSlurm
from tests.curate.test_cluster import tables

Row = dict[str, Any]
OPTIONS = CurateOptions(graph="off")
PARTS = 3


@pytest.fixture(scope="module")
def rows(network: Callable[..., str], warm: Callable[..., None]) -> list[Row]:
    """Some networks that are far from each other, some that are near."""
    dice = random.Random(5)
    codes = []
    for size in (9, 15, 25):
        blocks = [dice.randrange(12) for _ in range(size)]
        codes += [network(blocks), network(blocks, comment="the same"), network([*blocks[:-1], 3])]
        codes += [network(dice.sample(blocks, size)) for _ in range(3)]
    warm(codes)
    return [
        {
            "nn": f"ga-{number}",
            "nn_code": code,
            "task": "t",
            "dataset": "d",
            "metric": "acc",
            "epoch": 1,
            "accuracy": 0.1,
        }
        for number, code in enumerate(codes)
    ]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "slurm", array=2)
    monkeypatch.setenv("PATH", fake.path)
    return fake


def queue(
    names: Sequence[Path],
    tmp_path: Path,
    *,
    source: RecordSource | None = None,
    chosen: CurateOptions = OPTIONS,
    **options: Any,
) -> None:
    """Queue a curation, of which nothing runs yet but that the source is read."""
    specs = [str(name) for name in names]
    work, out = str(tmp_path / "work"), tmp_path / "out"
    distributed = DistributedOptions("slurm", **{"tasks": PARTS, "workers": 2, "work": work, **options})
    curate_in_tasks(source or open_sources(specs), specs, out, chosen, distributed)


# --- the plan -----------------------------------------------------------------------------------------------------


def write_lines(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_files(path: Path, rows: Sequence[Row]) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for row in rows:
        (path / f"{row['nn']}.py").write_text(row["nn_code"])


@pytest.mark.parametrize(
    ("name", "write", "named"),
    [("rows.jsonl", write_lines, "rows.jsonl"), ("nets", write_files, "nets")],
    ids=["file", "folder"],
)
def test_a_run_of_other_data_is_refused(
    name: str, write: Any, named: str, rows: list[Row], slurm: FakeSlurm, tmp_path: Path
) -> None:
    write(tmp_path / name, rows)
    queue([tmp_path / name], tmp_path)
    queue([tmp_path / name], tmp_path)  # the same data, the same plan
    one = [*rows[:-1], {**rows[-1], "nn_code": rows[-1]["nn_code"] + "#"}]
    for changed in (rows[:-1], rows + rows[:1], one):
        write(tmp_path / name, [row | {"nn": f"n{place}"} for place, row in enumerate(changed)])
        with pytest.raises(UserError, match=rf"holds a run that differs in inputs \({named}\); choose another --work"):
            queue([tmp_path / name], tmp_path)
    write(tmp_path / name, rows)
    queue([tmp_path / name], tmp_path)


def test_one_of_several_sources_has_changed(rows: list[Row], slurm: FakeSlurm, tmp_path: Path) -> None:
    both = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path, part in zip(both, (rows[:9], rows[9:]), strict=True):
        write_lines(path, part)
    queue(both, tmp_path)
    write_lines(both[1], rows[8:])
    with pytest.raises(UserError, match=r"differs in inputs \(two.jsonl: two.jsonl\)"):
        queue(both, tmp_path)


def test_a_source_that_changes_while_it_is_read(rows: list[Row], slurm: FakeSlurm, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_lines(path, rows)
    source = open_sources([str(path)])
    batches = source.batches

    def read() -> Iterator[Any]:
        yield from batches()
        write_lines(path, rows[:3])

    source.batches = read  # type: ignore[method-assign]
    with pytest.raises(UserError, match="has changed while it was read; run again"):
        queue([path], tmp_path, source=source)
    assert not (tmp_path / "work" / "source.json").exists()


def test_a_dataset_of_the_hub_is_its_commit() -> None:
    with HubServer().serve() as server:
        repository = server.make("o/n")
        hub = Hub(server.endpoint, answer_seconds=5)
        commits = []
        for text in (b"a", b"b"):
            commits.append(repository.edit(x=text))
            source = HubDataset("hf://datasets/o/n", hub=hub)
            assert source.digests() == {"hf://datasets/o/n": commits[-1]}
            assert source._revision == commits[-1]  # what is read from now on
        assert commits[0] != commits[1]
        with pytest.raises(UserError, match=r"^hf://datasets/o/n@gone: no such revision"):
            HubDataset("hf://datasets/o/n@gone", hub=hub).digests()
        asked = server.requests.total()
        pinned = HubDataset(f"hf://datasets/o/n@{commits[0]}", hub=hub)
        assert pinned.digests() == {f"hf://datasets/o/n@{commits[0]}": commits[0]}
        assert server.requests.total() == asked
        close_session()


# --- complete inputs ------------------------------------------------------------------------------------------------

#: A file of each kind, the step that wrote it, and the step that reads it next.
KINDS = [
    ("rows/00000.parquet", "source", 0, "write"),
    ("codes/00001.parquet", "source", 0, "features"),
    ("source.json", "source", 0, "write"),
    ("features/00002.parquet", "features", 2, "write"),
    ("features/00001.shingles", "features", 1, "write"),
]


def remove(path: Path) -> str:
    path.unlink()
    return "is missing"


def cut(path: Path) -> str:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return f"has {len(data) // 2} bytes, not {len(data)}"


def empty(path: Path) -> str:
    size = path.stat().st_size
    path.write_bytes(b"")
    return f"has 0 bytes, not {size}"


def flip(path: Path) -> str:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return "has changed"


def every_step_of(work: Path, source: RecordSource) -> list[Step]:
    plan = Work(Exchange(work), OPTIONS, PARTS)
    queued = list_steps(plan, work.with_name("out"), True, queued=True)
    return [source_step(plan, source, source.digests()), *queued]


def run_left(every_step: Sequence[Step]) -> None:
    """Run what is not done, each task as in a process of its own."""
    for step in every_step:
        for rank in range(step.tasks):
            if not is_done(step, rank):
                run_part(pickle.loads(pickle.dumps(step)), rank)


@pytest.fixture(scope="module")
def finished(rows: list[Row], memory_source: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder in which everything is done but the last step."""
    work = tmp_path_factory.mktemp("finished") / "work"
    run_left(every_step_of(work, memory_source(rows))[:-1])
    return work


@pytest.mark.parametrize(("name", "step", "rank", "reader"), KINDS, ids=[name for name, *_ in KINDS])
def test_what_is_missing_or_damaged_is_named_and_computed_again(
    name: str, step: str, rank: int, reader: str, rows: list[Row], memory_source: Any, finished: Path, tmp_path: Path
) -> None:
    work = shutil.copytree(finished, tmp_path / "work")
    every_step = every_step_of(work, memory_source(rows))
    place = [item.name for item in every_step].index(reader)
    for damage in (remove, cut, empty, flip):
        shutil.rmtree(work / "steps" / reader, ignore_errors=True)
        fault = damage(work / name)
        with pytest.raises(UserError) as caught:
            run_left(every_step[: place + 1])
        assert str(caught.value) == (
            f"{work}: {name}, of part {rank} of step {step}, {fault}; start again to compute it again"
        )
        run_left(every_step[:place])
        assert (work / name).read_bytes() == (finished / name).read_bytes()


def test_the_part_of_a_whole_rank_is_missing(rows: list[Row], memory_source: Any, tmp_path: Path) -> None:
    source = memory_source(rows)
    every_step = every_step_of(tmp_path / "work", source)
    run_left(every_step[:2])
    for path in (tmp_path / "work" / "features").glob("00001.*"):
        path.unlink()
    with pytest.raises(
        UserError, match=r"features/00001.parquet, of part 1 of step features, is missing \(and 1 more\)"
    ):
        run_left(every_step)
    run_left(every_step)
    curate(source, tmp_path / "at once", OPTIONS, jobs=1)
    assert tables(tmp_path / "out") == tables(tmp_path / "at once")
    damaged = tmp_path / "work" / "steps" / "features" / "completions" / "00001"
    damaged.write_text("{")  # the list itself
    shutil.rmtree(tmp_path / "work" / "steps" / "write")
    with pytest.raises(UserError, match=r"of part 1 of step features, is not of a finished task"):
        run_left(every_step)


# --- Slurm ------------------------------------------------------------------------------------------------------------


def test_steps_depend_on_all_arrays_of_the_step_before(rows: list[Row], slurm: FakeSlurm, tmp_path: Path) -> None:
    """Five tasks in arrays of at most two: each step waits for the three arrays of the step before."""
    path = tmp_path / "rows.jsonl"
    write_lines(path, rows)
    queue([path], tmp_path, chosen=CurateOptions(graph="all"), tasks=5, memory=(("", 2048), ("write", 16384)))
    jobs = slurm.jobs()
    features, (choose,), graphs = jobs[:3], jobs[3:4], jobs[4:7]
    assert [job.directive("array") for job in features] == ["0-1%2", "0-1%2", "0-0%2"]
    assert [job.option("export") for job in features] == [f"ALL,RUN_OFFSET={number}" for number in range(3)]
    assert [job.option("dependency") for job in features] == [None, "afterany:1", "afterany:2"]
    assert choose.option("dependency") == "afterok:1:2:3"
    assert [job.option("dependency") for job in graphs] == ["afterok:4", "afterok:4,afterany:5", "afterok:4,afterany:6"]
    assert jobs[7].option("dependency") == "afterok:5:6:7"
    assert {job.option("mem") for job in jobs[:-1]} == {"2048M"}
    assert (jobs[-1].directive("job-name"), jobs[-1].option("mem")) == ("lemur-write", "16384M")
    assert all(job.directive("requeue") == "" and job.directive("kill-on-invalid-dep") == "yes" for job in jobs)
    with pytest.raises(UsageError, match=r"^--memory join=…: no such step; there are features, choose, "):
        queue([path], tmp_path, memory=(("join", 1),))
    slurm.queue("1 RUNNING\n2 PENDING\n")
    with pytest.raises(UserError, match="its jobs are still queued: 1, 2; wait, or scancel them"):
        queue([path], tmp_path, chosen=CurateOptions(graph="all"), tasks=5)


@pytest.mark.slow
def test_what_slurm_runs_is_the_same_and_resumes(rows: list[Row], slurm: FakeSlurm, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_lines(path, rows)
    queue([path], tmp_path)
    code = tmp_path / "work" / "codes" / "00002.parquet"
    kept = code.read_bytes()
    code.unlink()
    slurm.run_all()
    status = read_status(str(tmp_path / "work"), lines=2)
    features = next(step for step in status.steps if step.name == "features")
    assert (features.done, features.failed, features.started[0].rank) == (2, 1, 2)
    assert "codes/00002.parquet, of part 0 of step source, is missing" in features.started[0].reason
    assert not (tmp_path / "out").exists()
    code.write_bytes(kept)
    before = len(slurm.jobs())
    slurm.failed.clear()
    queue([path], tmp_path)
    assert slurm.jobs()[before].directive("array") == "0-0%2"  # only what was left of features
    slurm.run_all(after=before)
    curate(open_sources([str(path)]), tmp_path / "at once", OPTIONS, jobs=1)
    assert tables(tmp_path / "out") == tables(tmp_path / "at once")


def test_memory_is_an_option_of_executors_that_reserve_it() -> None:
    distributed = DistributedOptions(executor="slurm", memory=(("", 1024),))
    assert distributed.memory == (("", 1024),)
    for options in ({"executor": "local"}, {}):
        with pytest.raises(UsageError, match="--memory"):
            DistributedOptions(memory=(("write", 1),), **options)  # type: ignore[arg-type]


# --- status and locks ---------------------------------------------------------------------------------------------------


def fail(rank: int, _tasks: int) -> None:
    if rank == 1:
        raise KeyError("x")
    if rank == 2:
        os._exit(9)


def test_status_names_what_is_done_runs_and_failed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run in tasks; name the --work of a command with --executor"):
        read_status(str(tmp_path / "work"), lines=0)
    files = Exchange(tmp_path / "work")
    files.write_text("plan.json", "{}")
    step = Step("emit", 4, fail, files)
    files.write_text("steps/emit/step.json", '{"number": 1, "tasks": 4}')
    run_part(step, 0)
    with pytest.raises(KeyError):
        run_part(step, 1)
    killed = multiprocessing.get_context("spawn").Process(target=run_part, args=(step, 2))
    killed.start()
    killed.join()
    (tmp_path / "work" / "steps" / "emit" / "logs").mkdir()
    (tmp_path / "work" / "steps" / "emit" / "logs" / "task_00002.log").write_text("one\n\ntwo\x1b[31m\nthree\n")
    with own(tmp_path / "work", "lock", "busy"):  # the command is at work: what has not ended runs
        (found,) = read_status(str(tmp_path / "work"), lines=2).steps
    assert (found.done, found.running, found.failed, found.waiting) == (1, 1, 1, 1)
    status = read_status(str(tmp_path / "work"), lines=2)
    assert status.held_by is None
    (found,) = status.steps
    assert (found.done, found.running, found.failed, found.waiting) == (1, 0, 2, 1)
    assert [(task.rank, task.reason) for task in found.started] == [(1, "KeyError: 'x'"), (2, "its process was killed")]
    assert found.started[1].log == ("two\x1b[31m", "three")
    assert "    two\\x1b[31m\n    three" in status_text(status)
    (tmp_path / "work" / "steps" / "emit" / "tasks" / "copy").touch()  # somebody's
    assert read_status(str(tmp_path / "work"), lines=2) == status
    (tmp_path / "work" / "steps" / "emit" / "tasks" / "00001").write_text("[]")
    with pytest.raises(UserError, match="work: steps/emit/tasks/00001 is damaged; remove it, and start the run again"):
        read_status(str(tmp_path / "work"), lines=2)


def test_a_lock_says_who_holds_it(tmp_path: Path) -> None:
    held = (tmp_path / "work", "lock", "another run works there", "--work")
    with own(*held), pytest.raises(UserError) as caught, own(*held):
        raise AssertionError
    assert re.fullmatch(
        rf"{tmp_path}/work: another run works there \(host \S+, process {os.getpid()}, since \d{{4}}-\S+Z\);"
        r" wait for it, or choose another --work",
        str(caught.value),
    )
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "lock").write_text("")  # of a release that wrote nothing
    with own(tmp_path / "old", "lock", "busy"):
        (tmp_path / "old" / "lock").write_text("")
        with pytest.raises(UserError, match="old: busy; wait for it, or choose another --out"), own(tmp_path / "old", "lock", "busy"):  # fmt: skip
            raise AssertionError
