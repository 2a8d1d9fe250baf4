"""What a job may use: memory, CPU, time, disk, threads, output. Each test asks for the reason, not only for a failure."""

import time
from collections.abc import Callable

import pytest

from lemur_core.sandbox import Limits, Outcome, Status

Run = Callable[..., Outcome]


def test_endless_sleep(run: Run) -> None:
    started = time.monotonic()
    outcome = run("sleep", Limits(wall_seconds=0.5), seconds=30)
    assert (outcome.status, outcome.value) == (Status.TIMEOUT, None)
    assert outcome.error == "ran longer than 0.5 seconds (wall)"
    assert 0.5 <= outcome.seconds < 3
    assert time.monotonic() - started < 5


def test_endless_loop(run: Run) -> None:
    outcome = run("spin", Limits(cpu_seconds=1))
    assert outcome.status == Status.TIMEOUT
    assert outcome.error == "used more than 1 seconds of CPU"


@pytest.mark.parametrize("entry", ["allocate_numpy", "allocate_shared"])
def test_memory(run: Run, entry: str) -> None:
    outcome = run(entry, Limits(memory_bytes=2**29))
    assert outcome.status in {Status.OUT_OF_MEMORY, Status.ERROR}
    assert "memory" in outcome.error.lower()
    assert outcome.peak_bytes < 2**30


def test_memory_of_torch(run_torch: Run) -> None:
    outcome = run_torch("allocate_torch", Limits(memory_bytes=2**29))
    assert outcome.status == Status.OUT_OF_MEMORY
    assert "can't allocate memory" in outcome.error


def test_a_training_step_fits(run_torch: Run) -> None:
    outcome = run_torch("torch_step")
    assert (outcome.status, outcome.value) == (Status.OK, True), outcome


def test_one_large_file(run: Run) -> None:
    outcome = run("fill_one_file", Limits(file_bytes=10 * 2**20))
    assert outcome.value == {"result": "EFBIG", "size": 10 * 2**20}


def test_many_large_files(run: Run) -> None:
    outcome = run("fill_files", Limits(scratch_bytes=40 * 2**20))
    assert outcome.status == Status.OVER_LIMIT
    assert "the limit is 41943040" in outcome.error


def test_many_empty_files(run: Run) -> None:
    outcome = run("many_files", Limits(scratch_bytes=8 * 2**20))
    assert outcome.status == Status.OVER_LIMIT, outcome


def test_threads(run: Run) -> None:
    outcome = run("many_threads", Limits(threads=32, memory_bytes=4 * 2**30))
    assert outcome.status == Status.OVER_LIMIT, outcome
    assert outcome.error.endswith("threads; the limit is 32")


def test_flood_of_prints(run: Run) -> None:
    outcome = run("flood")
    assert outcome.status == Status.OK
    assert len(outcome.stdout_tail) == len(outcome.stderr_tail) == 8192


def test_prints_are_kept(run: Run) -> None:
    outcome = run("print_text", out="to the one", err="to the other")
    assert (outcome.stdout_tail, outcome.stderr_tail) == ("to the one\n", "to the other\n")


def test_value_sizes(run: Run) -> None:
    whole = run("large_value", bytes=5_000_000)
    assert whole.value == "x" * 5_000_000
    beyond = run("large_value", bytes=17 * 2**20)
    assert (beyond.status, beyond.value) == (Status.OVER_LIMIT, None)
    assert beyond.error.endswith("bytes of JSON; the limit is 16777216")


def test_memory_limit_without_walls(run_open: Run) -> None:
    assert run_open("allocate_numpy", Limits(memory_bytes=2**29)).status == Status.OUT_OF_MEMORY
