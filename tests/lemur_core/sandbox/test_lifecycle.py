"""Order, restarts, clean ends."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import lemur_core.sandbox.client
from lemur_core.files.atomic import remove_dead
from lemur_core.files.errors import UserError
from lemur_core.sandbox import Job, Limits, Sandbox, Status
from lemur_core.sandbox.server.processes import remove_folder
from tests.builders.suites import read_files, table

HERE = Path(__file__).parent


def test_outcomes_come_in_order_and_crashes_harm_nobody_else(box: Sandbox) -> None:
    jobs = [Job(f"k{i}", "attacks:sleep", {"seconds": 0.3 if i % 5 == 0 else 0.0, "x": i}) for i in range(12)]
    crashes = {2: "segfault", 5: "_exit", 6: "kill", 9: "abort"}
    for place, how in crashes.items():
        jobs[place] = Job(f"k{place}", "attacks:leave", {"how": how})
    outcomes = list(box.run(jobs))
    assert [outcome.key for outcome in outcomes] == [job.key for job in jobs]
    assert [outcome.value for outcome in outcomes] == [None if i in crashes else i for i in range(12)]


def test_jobs_are_taken_as_needed_in_one_run_at_a_time(box: Sandbox) -> None:
    taken = 0

    def endless() -> Iterator[Job]:
        nonlocal taken
        while True:
            taken += 1
            yield Job(str(taken), "attacks:double", {"x": taken})

    outcomes = box.run(endless())
    first = [next(outcomes).value for _ in range(5)]
    outcomes.close()  # type: ignore[attr-defined]
    assert first == [{"doubled": 2 * (i + 1)} for i in range(5)]
    assert taken < 300
    assert next(iter(box.run([Job("after", "attacks:double", {"x": 1})]))).value == {"doubled": 2}
    outcomes = box.run([Job("1", "attacks:double", {"x": 1})] * 3)
    next(outcomes)
    with pytest.raises(UserError, match="is running jobs already"):
        next(box.run([Job("2", "attacks:double", {"x": 1})]))
    assert len(list(outcomes)) == 2


def test_what_goes_wrong_before_a_job_runs(box: Sandbox) -> None:
    bad, good = box.run([Job("bad", "attacks:double", {"x": object()}), Job("good", "attacks:double", {"x": 1})])
    assert (bad.key, bad.status) == ("bad", Status.ERROR)
    assert bad.error.startswith("the payload cannot be sent")
    assert good.value == {"doubled": 2}

    def jobs() -> Iterator[Job]:
        yield Job("1", "attacks:sleep", {"seconds": 0})
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        list(box.run(jobs()))
    assert next(iter(box.run([Job("after", "attacks:double", {"x": 1})]))).value == {"doubled": 2}
    entries = {"attacks:nothing": "AttributeError", "no_module:x": "ModuleNotFoundError", "attacks": "AttributeError"}
    outcomes = list(box.run(Job(entry, entry, {}) for entry in entries))
    assert {outcome.status for outcome in outcomes} == {Status.ERROR}
    for outcome in outcomes:
        assert outcome.error.startswith(f"could not be started: {entries[outcome.key]}: ")


def test_server_that_dies_is_started_again(box: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    jobs = [Job(str(i), "attacks:sleep", {"seconds": 0.2, "x": i}) for i in range(8)]
    outcomes = box.run(jobs)
    values = [next(outcomes).value]
    victim = box._links[0]
    os.killpg(victim._process.pid, signal.SIGKILL)  # its jobs are in sessions of their own, and die with it
    values += [outcome.value for outcome in outcomes]
    assert values == list(range(8))
    assert "server died" in caplog.text


def test_jobs_die_with_their_server(box: Sandbox) -> None:
    seconds = [0.0, *[30.0] * 3]
    outcomes = box.run(Job(str(i), "attacks:sleep", {"seconds": each}) for i, each in enumerate(seconds))
    assert next(outcomes).status == Status.OK
    time.sleep(0.3)
    family = [child for link in box._links for child in psutil.Process(link._process.pid).children(recursive=True)]
    assert len(family) >= 2
    for link in box._links:
        os.killpg(link._process.pid, signal.SIGKILL)
    alive = alive_later(family)
    outcomes.close()  # type: ignore[attr-defined]
    assert alive == []


def test_job_that_kills_the_server(open_box: Sandbox) -> None:
    """Only possible if unconfined. It runs twice, the second time alone, and the other jobs succeed."""
    jobs = [Job(str(i), "attacks:sleep", {"seconds": 0.1, "x": i}) for i in range(6)]
    jobs[2] = Job("killer", "attacks:kill_server", {})
    outcomes = list(open_box.run(jobs))
    assert [outcome.value for outcome in outcomes] == [0, 1, None, 3, 4, 5]
    assert outcomes[2].status == Status.CRASHED
    assert outcomes[2].error.startswith("the sandbox's server died twice while this job ran (exit code -9")


def test_scratch_is_private_and_nothing_is_left(box: Sandbox) -> None:
    """Scratch folders go with their jobs, whatever the jobs do to them."""
    assert box._folder is not None
    small = Limits(scratch_bytes=2**20)
    described, _ = box.run([Job("1", "attacks:describe", {}), Job("2", "attacks:fill_files", {}, small)])
    assert isinstance(described.value, dict)
    assert not Path(described.value["folder"]).exists()
    assert list(box._folder.rglob("job-*")) == []
    nosy = {"root": str(box._folder)}
    slow, found = box.run([Job("1", "attacks:sleep", {"seconds": 1}), Job("2", "attacks:neighbours", nosy)])
    assert slow.status == Status.OK
    assert found.value == []


@pytest.mark.slow
def test_nested_folders(box: Sandbox) -> None:
    """Deeper than a path can be long, or a call stack deep: neither may harm the server."""
    (outcome,) = box.run([Job("1", "attacks:nest", {"levels": 1500, "name": 100, "seconds": 5})])
    assert (outcome.status, outcome.error) == (Status.OVER_LIMIT, "nested its folders too deep")
    busy = Limits(wall_seconds=120)  # of a machine
    (outcome,) = box.run([Job("1", "attacks:nest", {"levels": 1500, "name": 1, "seconds": 0}, busy)])
    assert outcome.status == Status.OK, outcome
    assert box._folder is not None
    assert list(box._folder.glob("server-*/*")) == []


TEXTS = read_files(__file__, "lifecycle.md")


def interrupt(number: int, backend: str, entry: str, folder: Path) -> None:
    """Run jobs from another process, end that with a signal, and see that nothing of it is left."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(HERE.parents[2])}
    command = [sys.executable, "-P", "-c", TEXTS["_SCRIPT"], str(HERE), backend, entry]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"ready\n", caller.communicate()[1].decode()
        time.sleep(0.5)
        family = psutil.Process(caller.pid).children(recursive=True)
        assert len(family) >= 3  # the server and two jobs
        os.killpg(caller.pid, number)  # what a terminal does at Ctrl-C
        caller.communicate(timeout=15)
        assert alive_later(family) == []
    if backend == "bubblewrap" and number == signal.SIGKILL:  # its server does not see the caller's own folder
        assert list(folder.rglob("job-*")) == []
    else:
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("next_one", ["sandbox", pytest.param("command", marks=pytest.mark.slow)])
def test_what_a_caller_killed_without_a_server_leaves_goes_at_the_next_start(
    next_one: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(HERE.parents[2])}
    killed = subprocess.run([sys.executable, "-P", "-c", TEXTS["_KILLED"]], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert list(left.iterdir()) != []
    if next_one == "command":
        command = [sys.executable, "-P", "-c", "import lemur; lemur.main()", "--version"]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Sandbox(preload=(), unsafe=True):
        (living,) = tmp_path.iterdir()
        assert living != left
        remove_dead(tmp_path)
        assert living.exists()


def test_two_remove_the_same_folder(tmp_path: Path) -> None:
    """A killed caller's server and the next command do, at the same time."""
    folder = tmp_path / "filled"
    for number in range(40):
        (folder / str(number) / "deep").mkdir(parents=True)
        for place in range(40):
            (folder / str(number) / "deep" / str(place)).touch()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(remove_folder, [folder] * 4))
    assert not folder.exists()


def alive_later(family: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still do anything, before their work is done: a zombie only waits for the machine's first process to notice."""
    _, left = psutil.wait_procs(family, timeout=15)
    return [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.parametrize("confined", [True, False])
@pytest.mark.parametrize("entry", ["sleep", "spin"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_caller_leaves_nothing(
    number: int, entry: str, confined: bool, tmp_path: Path, box: Sandbox
) -> None:
    interrupt(number, box.backend if confined else "none", entry, tmp_path)


def test_close_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(preload=(), unsafe=True) as opened:
        folder = opened._folder
        assert folder is not None
        assert folder.parent == Path(tempfile.gettempdir()).resolve()
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()
    opened.close()
    with pytest.raises(UserError, match="not open"):
        next(opened.run([]))
    monkeypatch.setattr("lemur_core.sandbox.client.find_package", lambda name: "")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError) as refusal, Sandbox(preload=()):
        pass
    assert "sandlock: the package is not installed; bubblewrap: bwrap is not on the PATH" in str(refusal.value)
    assert "--unsafe-no-sandbox" in str(refusal.value)


def test_self_test_finds_a_missing_wall(monkeypatch: pytest.MonkeyPatch, box: Sandbox) -> None:
    """A back end of no effect on files must be refused, whatever it says of itself."""
    monkeypatch.setattr(lemur_core.sandbox.client, "BACKENDS", ("imaginary",))
    with pytest.raises(UserError) as refusal, Sandbox(preload=()):
        pass
    breaches = re.findall(r"a job could (.*?)\)", str(refusal.value))[0].split(", ")
    assert {"read a file outside", "list the home folder", "write to a file outside", "create a file outside"} <= set(
        breaches
    )
    assert not {"open an internet socket", "start a process", "change the mode of a file outside"} & set(breaches)


def test_probes_see_every_breach(open_box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("x")
    payload: dict[str, object] = {"canary": str(tmp_path / "canary"), "home": str(Path.home())}
    (outcome,) = open_box.run([Job("1", "lemur_core.sandbox.server.confine:find_breaches", payload)])
    assert isinstance(outcome.value, list), outcome
    depends_on_the_user = {"read the server's environment", "trace the server", "lift a limit"}
    assert len({*outcome.value, *depends_on_the_user}) == 15, outcome


@table(__file__, "lifecycle.md", "What cannot be started is told", globals())
def test_what_cannot_be_started_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sandbox(**{"preload": (), "unsafe": True, **options}).__enter__()
