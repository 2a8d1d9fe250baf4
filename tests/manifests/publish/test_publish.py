"""A finished folder goes to the Hub in one commit, and again only where it changed; what is in the way is told."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.hf_api import RepoFile
from hypothesis import given
from hypothesis import strategies as st

from lemur.folders import verify_folder
from lemur_core.files.errors import RetryableError, UserError
from manifests.provenance.swhid import blob_sha1
from manifests.publish.hub import check_names
from manifests.publish.publishing import PublishReport
from manifests.publish.repository import LocalFile, compare
from tests.builders.suites import table

REPO = "owner/data"
Send = Callable[..., PublishReport]
Fetch = Callable[..., dict[str, bytes]]
Finished = Callable[..., Path]
Read = Callable[[Path], dict[str, bytes]]
pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")  # of the client, about itself


@pytest.fixture
def repo(server: Any, send: Send) -> Any:
    """A repository that holds the sample."""
    send()
    server.requests.clear()
    server.uploaded.clear()
    return server.repos[REPO]


@pytest.fixture
def shown() -> list[PublishReport]:
    """What was asked about; the answer is no."""
    return []


@pytest.fixture
def no(shown: list[PublishReport]) -> Callable[[PublishReport], bool]:
    return lambda plan: bool(shown.append(plan))


def change(sample: Path, finished: Finished) -> None:
    (sample / "report.md").write_text("# Report, the second\n")
    (sample / "figures" / "one.png").unlink()
    (sample / "figures" / "two.png").write_bytes(b"\x89PNG\0two")
    finished(sample)


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_there_and_back_and_the_same_again(server: Any, send: Send, sample: Path, read: Read, fetch: Fetch) -> None:
    done = send()
    repo = server.repos[REPO]
    assert done.created
    assert done.commit == repo.branches["main"]
    assert repo.files() == read(sample) == fetch()
    assert not repo.private
    assert sorted(server.uploaded.values()) == [1, 1, 1]  # two tables and a figure
    server.requests.clear()
    again = send()
    assert (bool(again.changes), again.created, len(again.changes.same)) == (False, False, 7)
    assert again.commit == repo.branches["main"]
    assert len(repo.log) == 2  # the Hub's own first commit, and ours
    assert not {"preupload", "batch", "upload", "commit", "create"} & set(server.requests)


def test_only_what_changed_is_sent(
    server: Any, send: Send, sample: Path, repo: Any, finished: Finished, read: Read
) -> None:
    change(sample, finished)
    done = send()
    assert done.changes.added == ("figures/two.png",)
    assert done.changes.changed == ("manifest.json", "report.md")
    assert done.changes.removed == ("figures/one.png",)
    assert len(done.changes.same) == 4
    assert repo.files() == read(sample)
    assert len(repo.log) == 3
    assert list(server.uploaded.values()) == [1]


def test_a_dry_run_changes_nothing(
    server: Any, send: Send, sample: Path, repo: Any, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(sample, finished)
    before = repo.files()
    monkeypatch.delenv("HF_TOKEN")
    plan = send(dry_run=True)
    assert plan.commit is None
    assert str(plan.changes) == "1 added, 2 changed, 1 removed, 4 same"
    assert (plan.sizes["figures/two.png"], plan.sizes["figures/one.png"]) == (8, 10_249)
    assert repo.files() == before
    new = send(repo_id="owner/new", dry_run=True, revision="next")
    assert (new.created, len(new.changes.added)) == (True, 7)
    assert list(server.repos) == [REPO]


@pytest.mark.parametrize("fault", [503, "drop", "hang"])
def test_a_dry_run_needs_no_hub(
    server: Any, send: Send, sample: Path, sleeps: list[float], fault: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.faults = [server.Fault("refs", fault, times=1_000)]
    monkeypatch.delenv("HF_TOKEN")
    plan = send(dry_run=True)
    assert plan.unread is not None
    assert dict(plan.sizes) == {
        path.relative_to(sample).as_posix(): path.stat().st_size for path in sample.rglob("*") if path.is_file()
    }
    assert (plan.created, plan.commit, sleeps) == (False, None, [])
    with pytest.raises(RetryableError):
        send()


def test_what_is_shown_is_what_is_asked(server: Any, send: Send, shown: list[PublishReport], no: Any) -> None:
    done = send(confirm=no)
    assert (shown, done.commit, server.repos) == ([done], None, {})


def test_a_file_takes_the_place_of_a_folder(
    send: Send, sample: Path, repo: Any, finished: Finished, read: Read
) -> None:
    (sample / "a.txt").mkdir()
    (sample / "a.txt" / "page.md").write_text("1")
    send(finished(sample))
    shutil.rmtree(sample / "a.txt")
    (sample / "a.txt").write_text("none")
    (sample / "report.md").unlink()
    (sample / "report.md").mkdir()
    (sample / "report.md" / "page.md").write_text("1")
    send(finished(sample))
    assert repo.files() == read(sample)


NAMES = st.sampled_from(["a", "b", "a/b", "a/c", "README.md", "data/x.parquet", "data/y.parquet"])
CONTENTS = st.sampled_from([b"", b"x", b"y", b"longer"])


def here(data: bytes, path: Path = Path("f")) -> LocalFile:
    return LocalFile(path, len(data), hashlib.sha256(data).hexdigest(), blob_sha1(data))


def there(data: bytes, large: bool) -> RepoFile:
    """Of a large file, the repository's own blob is a pointer."""
    if large:
        lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100}
        return RepoFile(path="f", size=len(data), oid=blob_sha1(b"pointer to " + data), lfs=lfs)
    return RepoFile(path="f", size=len(data), oid=blob_sha1(data))


@given(st.dictionaries(NAMES, CONTENTS), st.dictionaries(NAMES, st.tuples(CONTENTS, st.booleans())))
def test_applied_the_changes_give_the_local_files(
    local: dict[str, bytes], remote: dict[str, tuple[bytes, bool]]
) -> None:
    found = compare({k: here(v) for k, v in local.items()}, {k: there(*v) for k, v in remote.items()})
    before = {name: data for name, (data, _) in remote.items()}
    after = {name: data for name, data in before.items() if name not in found.removed}
    assert not set(found.added) & set(after)
    assert all(after[name] != local[name] for name in found.changed), "only what differs is sent"
    after |= {name: local[name] for name in (*found.added, *found.changed)}
    assert after == local
    parts = (found.added, found.changed, found.removed, found.same)
    assert sorted(name for part in parts for name in part) == sorted(local.keys() | remote.keys()), "each file once"
    assert bool(found) == (local != before)
    assert all(list(part) == sorted(part) for part in parts)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 3])
def test_digests_of_a_file(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").write_bytes(b"z" * size)
    assert LocalFile.read(tmp_path / "f") == here(b"z" * size, tmp_path / "f")


# --- private repositories, branches, tags, names ----------------------------------------------------------------------


def test_private(server: Any, send: Send) -> None:
    send(private=True)
    assert server.repos[REPO].private
    send(repo_id="owner/public")
    with pytest.raises(UserError, match="is public already; make it private on the Hub first, or omit --private"):
        send(repo_id="owner/public", private=True)
    server.requests.clear()
    server.faults = [server.Fault("create", lambda hub: hub.make("owner/race"))]  # somebody else is quicker
    with pytest.raises(UserError, match="is public already"):
        send(repo_id="owner/race", private=True)
    assert len(server.repos["owner/race"].log) == 1


def test_branches(send: Send, sample: Path, repo: Any, finished: Finished, read: Read) -> None:
    before = repo.files()
    done = send(revision="same")
    assert repo.branches["same"] == repo.branches["main"] == done.commit, "made, although nothing changed"
    change(sample, finished)
    send(revision="next")
    assert repo.files("next") == read(sample)
    assert repo.files("main") == before
    assert [branch for branch, _ in repo.log] == ["main", "main", "next"]


def test_a_new_branch_or_tag_is_asked_for_too(send: Send, repo: Any, shown: list[PublishReport], no: Any) -> None:
    assert send(revision="next", tag="v9", confirm=no).commit is None
    assert [(plan.creates_branch, plan.tag, bool(plan.changes)) for plan in shown] == [(True, "v9", False)]
    assert (set(repo.branches), repo.tags) == ({"main"}, {})
    assert send(tag="v9").tag == "v9"
    assert not send(tag="v9", confirm=no).makes
    assert len(shown) == 1


def test_tags(send: Send, sample: Path, repo: Any, finished: Finished) -> None:
    done = send(tag="v1")
    assert repo.tags == {"v1": done.commit}
    send(tag="v1")
    change(sample, finished)
    with pytest.raises(UserError, match="tag v1 is on another commit"):
        send(tag="v1")
    assert len(repo.log) == 2, "a tag in the way is told before anything is sent"
    assert send(tag="v2").commit == repo.tags["v2"]
    with pytest.raises(UserError, match="v1 is a tag, which cannot move; name a branch"):
        send(revision="v1")


@pytest.mark.parametrize(
    "name", ["", "a b", "x..y", "/x", "x/", "x.lock", "-x", "refs/pr/1", "a" * 40, "x~1", ".x", "@"]
)
def test_names_of_branches_and_tags(name: str) -> None:
    for option, names in (("revision", (name, "v1")), ("tag", ("main", name))):
        with pytest.raises(UserError, match=f"--{option} .*: not a name for a branch or tag"):
            check_names(REPO, *names)


@pytest.mark.parametrize("name", ["a b/c", "owner/data/more", "--x/y", "", "data"])
def test_names_of_repositories(name: str) -> None:
    with pytest.raises(UserError, match="not a repository name"):
        check_names(name, None, None)


def test_names_are_looked_at_before_anything_else(server: Any, send: Send, sample: Path) -> None:
    with pytest.raises(UserError, match="--tag main: the branch has this name"):
        send(tag="main")
    with pytest.raises(UserError, match="not a repository name"):
        send(repo_id="data")
    assert not server.requests


# --- what somebody else did -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", [{"report.md": b"# Rep0rt\n"}, {"more.txt": b"x"}, {"manifest.json": None}])
def test_what_somebody_else_did_is_not_overwritten(
    send: Send, sample: Path, repo: Any, edit: dict[str, bytes | None], read: Read, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Whether this machine published before, or not."""
    repo.edit(**edit)
    before, log = repo.files(), list(repo.log)
    for cache, dry_run in (("seen", True), ("seen", False), ("of another machine", False)):
        monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / cache))
        with pytest.raises(UserError, match=r"somebody else changed it: commit \w+ there, 'Update', .*--force"):
            send(dry_run=dry_run)
    assert (repo.files(), repo.log) == (before, log)
    send(force=True)
    assert repo.files() == read(sample)


def test_a_colleagues_publication_is_not_overwritten(
    send: Send, sample: Path, repo: Any, tmp_path: Path, finished: Finished, fetch: Fetch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whole and as its manifest states, but not the one that we published last."""
    theirs = Path(shutil.copytree(sample, tmp_path / "theirs"))
    (theirs / "report.md").write_text("# Theirs\n")
    with monkeypatch.context() as patch:
        patch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "of a colleague"))
        newer = send(finished(theirs)).commit
    change(sample, finished)
    with pytest.raises(UserError, match=f"somebody else changed it: commit {str(newer)[:12]} came after yours"):
        send()
    assert repo.files()["report.md"] == b"# Theirs\n"
    fetch("looked at")
    assert send().commit == repo.branches["main"]


def test_a_folder_of_another_kind_is_not_replaced(send: Send, sample: Path, repo: Any, finished: Finished) -> None:
    with pytest.raises(UserError, match=r"it holds a folder of kind sample, this one is of kind other"):
        send(finished(sample, "other"))
    send(force=True)


def test_an_empty_repository_is_fine(server: Any, send: Send) -> None:
    server.make(REPO)
    assert not send().created
    assert len(server.repos[REPO].log) == 2


@table(__file__, "publish.md", "Rights", globals())
@pytest.mark.parametrize("there", [True, False])
def test_rights(
    server: Any, send: Send, monkeypatch: pytest.MonkeyPatch, token: str | None, told: str, there: bool
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    if there:
        server.make(REPO)
    with pytest.raises(UserError) as caught:
        send()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(len(repo.log) == 1 for repo in server.repos.values())


# --- what does not leave ----------------------------------------------------------------------------------------------


def test_a_folder_that_fails_its_checks(server: Any, send: Send, sample: Path) -> None:
    (sample / "report.md").write_text("changed")
    with pytest.raises(UserError, match=r"digests: report.md differs from its digest; see `lemur verify`"):
        send()
    assert not server.requests


def test_what_is_written_while_it_is_asked_for_does_not_leave(server: Any, send: Send, sample: Path) -> None:
    def edit(plan: PublishReport) -> bool:
        return bool((sample / "report.md").write_text("# Rep0rt\n"))

    with pytest.raises(UserError, match=r"report.md: was changed during publishing"):
        send(confirm=edit)
    assert len(server.repos[REPO].log) == 1
    assert server.requests["commit"] == 0


def test_a_folder_that_is_replaced_while_it_is_checked(
    server: Any, send: Send, sample: Path, finished: Finished
) -> None:
    def verify_then_replace(folder: Path, *, jobs: int | None = None) -> list[Any]:
        checks = verify_folder(folder)
        change(sample, finished)
        return checks

    with pytest.raises(UserError, match=r"manifest.json was changed meanwhile; run again"):
        send(verify=verify_then_replace)
    assert not server.requests


@pytest.mark.parametrize(
    "name", [".gitattributes", "a/.git/config", "figures/.gitignore", "a\nb", "../x", "a//b", "/x"]
)
def test_names_that_no_manifest_states(server: Any, send: Send, sample: Path, name: str) -> None:
    """The Hub ignores some of them, a terminal or another folder is not safe from others."""
    manifest = sample / "manifest.json"
    stated = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(stated | {"outputs": [stated["outputs"][0] | {"path": name}]}))
    with pytest.raises(UserError, match=r"not a valid manifest: outputs\.0\.path: .* not a (plain|bare)") as caught:
        send(sample)
    assert "\n" not in str(caught.value)
    assert not server.requests


def test_what_the_hub_leaves_out_is_told(send: Send, sample: Path, repo: Any, finished: Finished) -> None:
    (sample / "x.ignored.txt").write_text("x")
    with pytest.raises(UserError, match=r"is not what was sent \(1 added.*x.ignored.txt\); is there a .gitignore"):
        send(finished(sample))
    repo.edit(**{".gitignore": b"*.png"})
    for force in (True, False):
        with pytest.raises(UserError, match=r"contains .gitignore, with which the Hub ignores files; remove it there"):
            send(force=force)


# --- whatever breaks on the way: the same bytes and commits as without it, now or by a rerun ---------------------------

STEPS = ("refs", "create", "info", "tree", "branch", "preupload", "batch", "upload", "verify", "commit", "tag")
NEXT = {"revision": "next", "tag": "v1"}


@pytest.fixture
def is_whole(server: Any, sample: Path, read: Read) -> Callable[[], bool]:
    def look() -> bool:
        repo = server.repos[REPO]
        ours = [commit for branch, commit in repo.log if branch == "next"]
        return repo.files("next") == read(sample) and len(ours) == 1 and repo.tags == {"v1": ours[0]}

    return look


@pytest.mark.parametrize("what", [429, "drop", "lose"])
@pytest.mark.parametrize("step", STEPS)
def test_one_fault_is_overcome(
    server: Any, send: Send, is_whole: Callable[[], bool], step: str, what: int | str
) -> None:
    server.faults = [server.Fault(step, what)]
    send(**NEXT)
    assert server.requests[step] >= 1
    assert is_whole()
    assert set(server.uploaded.values()) <= {1, 2}


def test_a_silent_server_is_not_waited_for(server: Any, send: Send, is_whole: Callable[[], bool]) -> None:
    server.faults = [server.Fault(step, "hang") for step in ("refs", "tree", "preupload", "upload", "commit")]
    started = time.monotonic()
    send(**NEXT)
    assert time.monotonic() - started < 25, "the server is silent for 30 s, each time"
    assert is_whole()


@pytest.mark.parametrize("step", [step for step in STEPS if step != "verify"])  # the next try finds the file there
@pytest.mark.parametrize("what", [503, "drop"])
def test_a_lasting_fault_is_told_and_a_rerun_resumes(
    server: Any, send: Send, sleeps: list[float], is_whole: Callable[[], bool], step: str, what: int | str
) -> None:
    server.faults = [server.Fault(step, what, times=1_000)]
    with pytest.raises(RetryableError, match="run the same command again: ") as caught:
        send(**NEXT)
    assert "\n" not in str(caught.value)
    assert sleeps == [1, 2, 4, 8]
    arrived = set(server.objects)
    server.faults, server.uploaded = [], type(server.uploaded)()
    send(**NEXT)
    assert is_whole()
    assert not arrived & set(server.uploaded), "what had arrived is not sent again"


def test_a_lost_answer_is_looked_for(
    server: Any, send: Send, sleeps: list[float], is_whole: Callable[[], bool]
) -> None:
    server.faults = [server.Fault("commit", "lose", times=5)]
    send(**NEXT)
    assert server.requests["commit"] == 1, "the commit is found, not sent again"
    assert sleeps == []
    assert is_whole()


def test_a_lost_answer_and_then_nothing(server: Any, send: Send, is_whole: Callable[[], bool]) -> None:
    def cut(server: Any) -> None:
        server.faults.append(server.Fault("refs", 503, times=1_000))

    server.faults = [server.Fault("verify", cut), server.Fault("commit", "lose")]
    with pytest.raises(RetryableError):
        send(**NEXT)
    server.faults = []
    send(**NEXT)
    assert is_whole()


def test_a_commit_comes_in_between(server: Any, send: Send) -> None:
    repo = server.make(REPO)
    server.faults = [server.Fault("commit", lambda server: repo.edit(**{"theirs.txt": b"x"}))]
    with pytest.raises(UserError, match="came in between; run again to compare") as caught:
        send()
    assert not isinstance(caught.value, RetryableError)
    assert repo.files() == {"theirs.txt": b"x"}


def test_the_same_comes_in_between(server: Any, send: Send, sample: Path, read: Read) -> None:
    repo = server.make(REPO)
    server.faults = [server.Fault("commit", lambda server: repo.edit(**read(sample)))]
    assert send().commit == repo.branches["main"]
    assert len(repo.log) == 2


def test_a_commit_comes_after_a_lost_answer(server: Any, send: Send, sample: Path, read: Read) -> None:
    """The head is not ours: that is said, and nothing is overwritten."""
    repo = server.make(REPO)
    server.faults = [server.Fault("commit", "lose")]
    looked = server.requests["refs"] + 2  # after the answer was lost
    server.faults.append(server.Fault("refs", lambda server: repo.edit(**{"theirs.txt": b"x"}), nth=looked))
    for told in ("another commit, .*, came in between; run again to compare", "somebody else changed it"):
        with pytest.raises(UserError, match=told):
            send()
    assert repo.files() == read(sample) | {"theirs.txt": b"x"}


@pytest.mark.parametrize("status", [400, 402, 413, 422])
def test_a_refusal_is_not_tried_again(server: Any, send: Send, sleeps: list[float], status: int) -> None:
    server.faults = [server.Fault("commit", status, times=1_000)]
    with pytest.raises(UserError, match=f"the Hub refuses with status {status}: ordered by the test"):
        send()
    assert (sleeps, server.requests["commit"]) == ([], 1)
