"""Whatever breaks on the way: the repository ends with the same bytes and commits as without it, now or by a rerun."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lemur.folders import verify_folder
from lemur_core.files.errors import RetryableError, UserError
from manifests.publish import Hub
from manifests.publish import publish as publish_checked

publish = partial(publish_checked, verify=verify_folder)

REPO = "owner/data"
pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")  # of the client, about itself
STEPS = ("refs", "create", "info", "tree", "branch", "preupload", "batch", "upload", "verify", "commit", "tag")
WHAT = (500, 503, 429, "drop", "lose")


def is_whole(server: Any, sample: Path, read: Callable[..., Any]) -> bool:
    repo = server.repos[REPO]
    ours = [commit for branch, commit in repo.log if branch == "next"]
    return repo.files("next") == read(sample) and len(ours) == 1 and repo.tags == {"v1": ours[0]}


def send(sample: Path, hub: Hub) -> None:
    publish(sample, REPO, revision="next", tag="v1", hub=hub)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", WHAT)
def test_one_fault_is_overcome(
    server: Any, hub: Hub, sample: Path, read: Callable[..., Any], step: str, what: int | str
) -> None:
    server.faults = [server.Fault(step, what)]
    send(sample, hub)
    assert server.requests[step] >= 1
    assert is_whole(server, sample, read)
    assert set(server.uploaded.values()) <= {1, 2}


@pytest.mark.parametrize("step", ["refs", "tree", "preupload", "upload", "commit"])
def test_a_silent_server_is_not_waited_for(
    server: Any, hub: Hub, sample: Path, read: Callable[..., Any], step: str
) -> None:
    server.faults = [server.Fault(step, "hang")]
    started = time.monotonic()
    send(sample, hub)
    assert time.monotonic() - started < 15, "the server is silent for 30 s"
    assert is_whole(server, sample, read)


@pytest.mark.parametrize("step", [step for step in STEPS if step != "verify"])  # the next try finds the file there
@pytest.mark.parametrize("what", [503, "drop"])
def test_a_lasting_fault_is_told_and_a_rerun_resumes(
    server: Any, hub: Hub, sleeps: list[float], sample: Path, read: Callable[..., Any], step: str, what: int | str
) -> None:
    server.faults = [server.Fault(step, what, times=1_000)]
    with pytest.raises(RetryableError, match="run the same command again: ") as caught:
        send(sample, hub)
    assert "\n" not in str(caught.value)
    assert sleeps == [1, 2, 4, 8]
    arrived = set(server.objects)
    server.faults, server.uploaded = [], type(server.uploaded)()
    send(sample, hub)
    assert is_whole(server, sample, read)
    assert not arrived & set(server.uploaded), "what had arrived is not sent again"


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_lost_answer_is_looked_for(
    server: Any, hub: Hub, sleeps: list[float], sample: Path, read: Callable[..., Any], times: int
) -> None:
    server.faults = [server.Fault("commit", "lose", times=times)]
    send(sample, hub)
    assert server.requests["commit"] == 1, "the commit is found, not sent again"
    assert sleeps == []
    assert is_whole(server, sample, read)


def test_a_lost_answer_and_then_nothing(server: Any, hub: Hub, sample: Path, read: Callable[..., Any]) -> None:
    def cut(server: Any) -> None:
        server.faults.append(server.Fault("commits", 503, times=1_000))

    server.faults = [server.Fault("verify", cut), server.Fault("commit", "lose")]
    with pytest.raises(RetryableError):
        send(sample, hub)
    server.faults = []
    send(sample, hub)
    assert is_whole(server, sample, read)


def test_a_commit_comes_in_between(server: Any, hub: Hub, sample: Path) -> None:
    repo = server.make(REPO)
    server.faults = [server.Fault("commit", lambda server: repo.edit(**{"theirs.txt": b"x"}))]
    with pytest.raises(UserError, match="came first; nothing was published; run again to compare") as caught:
        publish(sample, REPO, hub=hub)
    assert not isinstance(caught.value, RetryableError)
    assert repo.files() == {"theirs.txt": b"x"}
    with pytest.raises(UserError, match=r"holds no manifest\.json, but theirs\.txt"):
        publish(sample, REPO, hub=hub)


def test_the_same_comes_in_between(server: Any, hub: Hub, sample: Path, read: Callable[..., Any]) -> None:
    repo = server.make(REPO)
    server.faults = [server.Fault("commit", lambda server: repo.edit(**read(sample)))]
    done = publish(sample, REPO, hub=hub)
    assert done.commit == repo.branches["main"]
    assert len(repo.log) == 2


def test_a_commit_comes_after_a_lost_answer(server: Any, hub: Hub, sample: Path, read: Callable[..., Any]) -> None:
    repo = server.make(REPO)
    server.faults = [
        server.Fault("commit", "lose"),
        server.Fault("commits", lambda server: repo.edit(**{"theirs.txt": b"x"})),
    ]
    done = publish(sample, REPO, hub=hub, tag="v1")
    ours, theirs = repo.log[1][1], repo.log[2][1]
    assert repo.branches["main"] == theirs
    assert done.commit == ours == repo.tags["v1"]
    assert repo.files("v1") == read(sample)


def test_a_full_disk_there(server: Any, hub: Hub, sample: Path, read: Callable[..., Any]) -> None:
    server.faults = [server.Fault("upload", 507, times=1_000)]
    with pytest.raises(RetryableError, match="ordered by the test"):
        send(sample, hub)
    assert "next" not in server.repos[REPO].files()
    server.faults = []
    send(sample, hub)
    assert is_whole(server, sample, read)


@pytest.mark.parametrize("status", [400, 402, 413, 422])
def test_a_refusal_is_not_tried_again(server: Any, hub: Hub, sleeps: list[float], sample: Path, status: int) -> None:
    server.faults = [server.Fault("commit", status, times=1_000)]
    with pytest.raises(UserError, match=f"the Hub refuses with status {status}: ordered by the test"):
        send(sample, hub)
    assert sleeps == []
    assert server.requests["commit"] == 1
