"""How a job ends: what it may use, each limit with its reason; and a result that counts only if the entry returned it."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from lemur_core.files.errors import UserError
from lemur_core.sandbox import Job, Limits, Outcome, Sandbox, Status
from lemur_core.sandbox.server.usage import OverLimitError, Scratch
from tests.builders.hostile import list_hostile
from tests.builders.suites import table
from tests.lemur_core.sandbox.attacks import HIDING
from tests.lemur_core.sandbox.conftest import open_sandbox

Run = Callable[..., Outcome]


def test_endless_sleeps(run: Run) -> None:
    outcome = run("sleep", Limits(wall_seconds=0.5), seconds=60)
    assert (outcome.status, outcome.value) == (Status.TIMEOUT, None)
    assert outcome.error == "ran longer than 0.5 seconds (wall)"
    assert 0.5 <= outcome.seconds < 30
    outcome = run("wait", Limits(idle_seconds=1), how="naps")
    assert (outcome.error, outcome.waited) == ("used almost no CPU for 1 seconds", True)


WAITS = ("sleep", "lock", "each other", "pipe", "select", "signal", "stopped", "file lock", "thread", "naps")


@pytest.mark.slow
def test_what_only_waits_is_over_and_holds_up_no_others(box: Sandbox) -> None:
    """Whatever it waits for, and also if it wakes up for moments."""
    jobs = [Job(how, "attacks:wait", {"how": how}, Limits(idle_seconds=4)) for how in WAITS]
    jobs += [Job(f"{number}", "attacks:double", {"x": number}) for number in range(30)]
    started = time.monotonic()
    outcomes = list(box.run(jobs))
    assert [outcome.key for outcome in outcomes] == [job.key for job in jobs]
    assert [outcome.waited for outcome in outcomes] == [True] * 10 + [False] * 30
    ends = {(outcome.status, outcome.error) for outcome in outcomes if outcome.waited}
    assert ends == {(Status.TIMEOUT, "used almost no CPU for 4 seconds")}
    if box.backend != "bubblewrap":
        waits = sum(outcome.seconds for outcome in outcomes)
        assert time.monotonic() - started < waits / 2, "more than two wait at a time"


@pytest.mark.slow
def test_the_processes_of_a_job_wait_together(run_open: Run) -> None:
    assert run_open("wait", Limits(idle_seconds=2), how="child").waited
    assert run_open("work_in_child", Limits(idle_seconds=2), seconds=3).value == "done"


@pytest.mark.slow
def test_a_job_that_gets_no_cpu_does_not_wait() -> None:
    """On a busy machine it runs into its wall time, and may run again: here with the lowest priority on one core."""
    core = min(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        with Sandbox(preload=(), sys_path=[Path(__file__).parent], workers=1) as opened:
            server = psutil.Process(opened._links[0]._process.pid)
            server.nice(19)
            for process in (*busy, server):
                os.sched_setaffinity(process.pid, {core})
            (outcome,) = opened.run([Job("", "attacks:spin", {}, Limits(wall_seconds=6, idle_seconds=2))])
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert (outcome.status, outcome.waited) == (Status.TIMEOUT, False), outcome
    assert outcome.error == "ran longer than 6 seconds (wall)"


@table(__file__, "outcomes.md", "Limits", globals())
def test_limits(run: Run, entry: str, limits: Limits, status: Status, error: str) -> None:
    outcome = run(entry, limits)
    assert outcome.status == status, outcome
    assert outcome.error.endswith(error)


@pytest.mark.parametrize("how", HIDING)
def test_files_that_hide(run: Run, how: str) -> None:
    """Space counts wherever it is."""
    outcome = run("hide_files", Limits(scratch_bytes=64 * 2**20, file_bytes=16 * 2**20), how=how)
    assert outcome.status == Status.OVER_LIMIT, outcome
    assert re.search(r"the limit is 67108864|too deep|cannot be read", outcome.error)


@table(__file__, "outcomes.md", "Files that move", globals())
def test_files_that_move_count_every_time(tmp_path: Path, folder: str, program: str) -> None:
    """Not only in some of the looks, so that it would take luck to find them."""
    for number in range(4):
        (tmp_path / f"{folder}f{number}").parent.mkdir(exist_ok=True)
        (tmp_path / f"{folder}f{number}").write_bytes(b"x" * 2**20)
    moving = subprocess.Popen([sys.executable, "-c", f"import itertools, os\n{program}"], cwd=tmp_path)
    try:
        time.sleep(0.3)
        scratch = Scratch(tmp_path, Limits(scratch_bytes=4 * 2**20))
        for _ in range(40):
            with pytest.raises(OverLimitError, match="the limit is 4194304"):
                scratch.check([moving.pid])
            time.sleep(0.01)
        assert moving.poll() is None
    finally:
        moving.kill()
        moving.wait()


@pytest.mark.parametrize("how", ["timers", "signals", "signals to a thread"])
def test_no_job_takes_the_places_of_the_users_signals(run: Run, how: str) -> None:
    taken, places = run("fill_queue", how=how).value  # type: ignore[misc]  # other processes of the user have some, too
    assert int(taken) < 1000
    assert places == "64"


@pytest.mark.parametrize("how", ["blocks", "bytes", "both", "result"])
def test_reading_a_flood_costs_less_than_the_flood(run: Run, box: Sandbox, how: str) -> None:
    """The server's time is less than half of that of the job, which ends by its limits, and is not run again for it."""
    (server,) = (psutil.Process(link._process.pid) for link in box._links[:1])
    before = server.cpu_times()
    outcome = run("flood_always", Limits(cpu_seconds=1, wall_seconds=20), how=how)
    after = server.cpu_times()
    own, of_job = (sum(after[at : at + 2]) - sum(before[at : at + 2]) for at in (0, 2))
    assert outcome.status in {Status.OVER_LIMIT, Status.TIMEOUT}
    assert "bytes" not in outcome.error or outcome.error == "printed too many bytes; the limit is 67108864"
    assert own < 0.2 + of_job / 2, outcome


def test_files_of_decent_jobs(run: Run, run_open: Run, box: Sandbox) -> None:
    """Neither what is not on the disk counts, nor the names of one file as files."""
    assert run("small_use", Limits(scratch_bytes=8 * 2**20)).value == "done"
    assert run("allocate_at_once").value == "ENOTSUP"
    assert run("remove_scratch").value in {"EACCES", "EPERM", "EBUSY", "EROFS"}
    assert run_open("remove_scratch").value == "done"
    assert run("many_descriptors", Limits(open_files=20)).value == {"error": "EMFILE", "opened": 17}
    code = "answer = open('/proc/self/oom_score_adj').read().strip()"
    (outcome,) = box.run([Job("one", "lemur_core.sandbox.loader:run_text", {"code": code})])
    assert outcome.value == "1000", outcome.error


def test_a_disk_without_room_is_told(box: Sandbox) -> None:
    jobs = [Job(str(number), "attacks:double", {"x": number}, Limits(scratch_bytes=2**60)) for number in range(3)]
    folder = re.escape(str(box._folder and box._folder.parent))
    with pytest.raises(UserError, match=rf"^{folder}: \d+ MiB are free there, and a job may write \d+ MiB; free some"):
        list(box.run(jobs))
    assert next(box.run([Job("after", "attacks:double", {"x": 1})])).value == {"doubled": 2}


@pytest.mark.parametrize(("entry", "payload"), [("allocate", {"library": "numpy"}), ("allocate_shared", {})])
def test_memory(run: Run, run_open: Run, entry: str, payload: dict[str, Any]) -> None:
    outcome = run(entry, Limits(memory_bytes=2**29), **payload)
    assert outcome.status in {Status.OUT_OF_MEMORY, Status.ERROR}
    assert "memory" in outcome.error.lower()
    assert outcome.peak_bytes < 2**30
    assert run_open(entry, Limits(memory_bytes=2**29), **payload).status == outcome.status, "even if unconfined"


def test_torch(box: Sandbox) -> None:
    small = Limits(memory_bytes=2**29)
    jobs = [Job("", "attacks:torch_step", {}), Job("", "attacks:allocate", {"library": "torch"}, small)]
    with closing(open_sandbox(box.backend, preload=("torch", "numpy"), entries=["attacks:torch_step"])) as opened:
        step, allocation = opened.run(jobs)
    assert (step.status, step.value) == (Status.OK, True), step
    assert allocation.status == Status.OUT_OF_MEMORY
    assert allocation.error == "needs more memory than 0.5 GiB", "the same on every machine"


def test_sizes_of_what_a_job_gives(run: Run) -> None:
    outcome = run("print_text", out="to the one", err="to the other")
    assert (outcome.stdout_tail, outcome.stderr_tail) == ("to the one\n", "to the other\n")
    outcome = run("flood")
    assert outcome.status == Status.OK
    assert len(outcome.stdout_tail) == len(outcome.stderr_tail) == 8192
    assert run("large_value", bytes=5_000_000).value == "x" * 5_000_000
    beyond = run("large_value", bytes=17 * 2**20)
    assert (beyond.status, beyond.value) == (Status.OVER_LIMIT, None)
    assert beyond.error.endswith("bytes of JSON; the limit is 16777216")
    outcome = run("nested_value")
    assert (outcome.status, outcome.value) in {(Status.CRASHED, None), (Status.ERROR, None)}
    assert run("double", x=2).value == {"doubled": 4}
    outcome = run("fill_one_file", Limits(file_bytes=10 * 2**20))
    assert outcome.value == {"result": "EFBIG", "size": 10 * 2**20}


@table(__file__, "outcomes.md", "Leaving early is no result", globals())
def test_leaving_early_is_no_result(run: Run, how: str, code: int, message: str) -> None:
    outcome = run("leave", how=how, code=code)
    assert (outcome.status, outcome.value) == (Status.CRASHED, None)
    assert outcome.error.startswith(message)


def test_what_is_left_or_replaced_spoils_no_result(run: Run) -> None:
    outcome = run("harmless_leftovers")
    assert (outcome.status, outcome.value) == (Status.OK, "clean")
    assert outcome.seconds < 15
    outcome = run("patch_modules")
    assert outcome.value != "forged"


@pytest.mark.parametrize("leave", [True, False])
def test_forged_result(run: Run, leave: bool) -> None:
    outcome = run("forge", leave=leave)
    assert (outcome.status, outcome.value) == (Status.CRASHED, None)
    assert outcome.error == "something other than the entry wrote to the result channel; nothing counts"
    assert "forged" in outcome.stdout_tail


@table(__file__, "outcomes.md", "Exceptions", globals())
def test_exceptions(run: Run, entry: str, payload: dict[str, Any], status: Status, message: str) -> None:
    outcome = run(entry, **payload)
    assert (outcome.status, outcome.value) == (status, None)
    assert outcome.error.startswith(message)
    if entry != "odd_value":
        assert "attacks.py:" in outcome.error.splitlines()[-1]
        assert outcome.error.endswith(f"in {entry}")


@pytest.mark.parametrize("unsafe", [False, True])
def test_whatever_code_leaves_behind_the_job_ends_with_an_outcome(
    box: Sandbox, open_box: Sandbox, unsafe: bool
) -> None:
    """The server's process goes on: nothing returns into its loop."""
    sandbox = open_box if unsafe else box
    assert [outcome.value for outcome in sandbox.run([Job("", "attacks:double", {"x": 1})])] == [{"doubled": 2}]
    servers = [link._process.pid for link in sandbox._links]
    kinds = list_hostile()
    jobs = (Job(name, "attacks:run_statements", {"code": code}) for name, code in kinds.items())
    outcomes = {outcome.key: outcome for outcome in sandbox.run(jobs)}
    assert outcomes.keys() == kinds.keys()
    for name, outcome in outcomes.items():
        if kinds[name].rpartition("\n")[2].startswith("raise"):
            assert (outcome.status, outcome.value) in {(Status.ERROR, None), (Status.CRASHED, None)}, (name, outcome)
        assert outcome.status in {Status.OK, Status.ERROR, Status.CRASHED}, (name, outcome)
        assert outcome.value == ("done" if outcome.status is Status.OK else None), (name, outcome)
        assert outcome.error or outcome.status is Status.OK, (name, outcome)
    assert [outcome.value for outcome in sandbox.run([Job("", "attacks:double", {"x": 2})])] == [{"doubled": 4}]
    assert [link._process.pid for link in sandbox._links] == servers


def test_an_exception_is_described_by_what_it_really_is(run: Run) -> None:
    kinds = list_hostile()
    for name, error in {
        "str exits (Exception)": "E: (its message is unavailable: SystemExit)",
        "str of lone surrogates and NUL (OSError)": r"E: \ud800 lone \x00",
        "class raises (BaseException)": "E: x",
        "causes never end (Exception)": "E: x",
        "traceback raises (ModuleNotFoundError)": "E: x",
        "type's name raises": "E: x",
        "profile raises": "KeyboardInterrupt: profile",
    }.items():
        assert run("run_statements", code=kinds[name]).error.splitlines()[0] == error, name
