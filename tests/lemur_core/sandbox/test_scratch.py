"""A scratch folder of the caller's: the job's alone to write to, still there afterwards, and no way out of it."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lemur_core.sandbox import Job, Limits, Outcome, Sandbox, Status

REFUSED = {"EPERM", "EACCES", "EROFS", "ENOENT"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "outer" / "scratch"
    made.mkdir(parents=True)
    return made


def run_in(
    box: Sandbox, folder: Path | str | None, entry: str, *, limits: Limits | None = None, **payload: object
) -> Outcome:
    (outcome,) = box.run([Job("one", f"attacks:{entry}", payload, limits, scratch=folder and str(folder))])
    return outcome


@pytest.mark.parametrize("confined", [True, False])
def test_it_stays_and_the_next_job_finds_it(box: Sandbox, open_box: Sandbox, folder: Path, confined: bool) -> None:
    first, second = (run_in(box if confined else open_box, folder, "keep", name=name) for name in ("first", "second"))
    assert (first.value, second.value) == ([], ["first"]), (first, second)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"first": "kept", "second": "kept"}


def test_it_is_the_working_folder_and_limited(box: Sandbox, folder: Path) -> None:
    outcome = run_in(box, folder, "describe")
    assert isinstance(outcome.value, dict)
    assert outcome.value["folder"] == outcome.value["temporary"] == outcome.value["environment"]["HOME"] == str(folder)
    (folder / "before").write_bytes(b"x" * 2**20)
    outcome = run_in(box, folder, "fill_files", limits=Limits(scratch_bytes=8 * 2**20))
    assert outcome.status == Status.OVER_LIMIT
    assert "the limit is 8388608" in outcome.error
    assert (folder / "before").stat().st_size == 2**20


def test_nothing_beside_it_can_be_written(box: Sandbox, folder: Path, open_box: Sandbox) -> None:
    victim = folder.parent / "victim"
    victim.write_text("mine")
    paths = [str(victim), str(folder.parent / "new"), str(folder.parent.parent / "new")]
    outcome = run_in(box, folder, "write_at", paths=[*paths, str(folder / "own")])
    assert isinstance(outcome.value, dict), outcome
    assert outcome.value.pop(str(folder / "own")) == "done"
    assert set(outcome.value.values()) <= REFUSED, outcome.value
    assert victim.read_text() == "mine"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["scratch", "victim"]
    real = run_in(open_box, folder, "write_at", paths=paths)  # the attempt is a real one
    assert isinstance(real.value, dict)
    assert set(real.value.values()) == {"done"}


def test_other_jobs_cannot_reach_it(box: Sandbox, folder: Path) -> None:
    run_in(box, folder, "keep", name="secret")
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    for other in (None, elsewhere):
        assert run_in(box, other, "read", path=str(folder / "secret")).value in REFUSED
        written = run_in(box, other, "write_at", paths=[str(folder / "secret"), str(folder / "more")])
        assert isinstance(written.value, dict)
        assert set(written.value.values()) <= REFUSED, written.value
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("secret", "kept")]


def test_the_caller_can_read_while_it_runs(box: Sandbox, folder: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_in, box, folder, "keep", name="progress", seconds=1.5)
        while not (folder / "progress").exists() and not running.done():
            time.sleep(0.02)
        assert not running.done()
        assert running.result().status == Status.OK


def test_a_planted_link_leads_nowhere(box: Sandbox, folder: Path, tmp_path: Path) -> None:
    """Neither the server (which looks at sizes) nor the next job's folder follows a link that a job has made."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(b"x" * 2**21)
    planted = run_in(box, folder, "keep", link=str(outside))
    assert planted.status == Status.OK, planted
    again = run_in(box, folder, "keep", name="after", seconds=0.4, limits=Limits(scratch_bytes=2**20))
    assert again.status == Status.OK, again  # what the link points to is not counted
    through = run_in(box, folder, "write_at", paths=[str(folder / "link" / "made")])
    assert isinstance(through.value, dict)
    assert set(through.value.values()) <= REFUSED
    refused = run_in(box, folder / "link", "keep", name="made")
    assert refused.status == Status.ERROR
    assert "not a path without links" in refused.error
    assert [path.name for path in outside.iterdir()] == ["large"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing", "no such folder"), ("file", "no such folder"), ("../scratch", "without links and dots")],
)
def test_what_is_no_folder_is_refused(box: Sandbox, folder: Path, name: str, reason: str) -> None:
    (folder / "file").touch()
    outcome = run_in(box, f"{folder}/{name}", "keep", name="x")
    assert outcome.status == Status.ERROR
    assert reason in outcome.error
    assert run_in(box, "relative", "keep", name="x").error.startswith("relative: not a path without links")


def test_environment_of_the_caller() -> None:
    with Sandbox(preload=(), sys_path=[Path(__file__).parent], environment={"EXTRA": "yes"}, unsafe=True) as opened:
        outcome = run_in(opened, None, "describe")
    assert isinstance(outcome.value, dict)
    assert outcome.value["environment"]["EXTRA"] == "yes"
