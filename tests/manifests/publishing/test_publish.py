"""A finished folder goes to the Hub in one commit, and again only where it changed; what is in the way is told."""

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from huggingface_hub import CommitOperationAdd
from hypothesis import given
from hypothesis import strategies as st

from lemur.folders import verify_folder
from lemur_core.files.errors import RetryableError, UserError
from manifests import cli, interface
from manifests.folders.kinds import Check
from manifests.folders.manifest import read_manifest
from manifests.folders.tables import reading
from manifests.publishing.hub import Hub
from manifests.publishing.publish import PublishReport, compare, publish
from tests.builders.fake_hub import FakeHub, File

REPO, TOKEN = "owner/data", "hf_" + "W" * 34
ALNUM = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fGhIjKlMnOpQrStUvWx"
Send = Callable[..., PublishReport]
Fetch = Callable[..., dict[str, bytes]]
Finished = Callable[..., Path]
Read = Callable[[Path], dict[str, bytes]]


def run_publish(folder: Path, *, verify: Callable[[Path], list[Check]] = verify_folder, **options: Any) -> None:
    """As the command line does."""
    with patch.object(interface, "load_function", lambda _: verify):
        cli.publish(folder, REPO, **options)


@pytest.fixture
def repo(server: Any, send: Send) -> Any:
    send()
    server.requests.clear()
    return server.repos[REPO]


def change(sample: Path, finished: Finished) -> None:
    (sample / "report.md").write_text("# Report, the second\n")
    (sample / "figures" / "one.png").unlink()
    (sample / "figures" / "two.png").write_bytes(b"\x89PNG\0two")
    finished(sample)


def test_there_and_back_and_the_same_again(
    server: Any, send: Send, sample: Path, finished: Finished, read: Read, fetch: Fetch
) -> None:
    done = send()
    repo = server.repos[REPO]
    assert (done.created, done.commit, repo.private) == (True, repo.branches["main"], False)
    assert repo.files() == read(sample) == fetch()
    server.requests.clear()
    again = send()
    assert (bool(again.changes), again.created, len(again.changes.same)) == (False, False, 7)
    assert again.commit == repo.branches["main"]
    assert len(repo.log) == 2  # the Hub's own first commit, and ours
    assert not [name for name in server.requests if name.startswith("create")]
    change(sample, finished)
    done = send()
    assert (done.changes.added, done.changes.removed) == (("figures/two.png",), ("figures/one.png",))
    assert (done.changes.changed, len(done.changes.same)) == (("manifest.json", "report.md"), 4)
    assert (repo.files(), len(repo.log)) == (read(sample), 3)


def test_a_dry_run_changes_nothing(server: Any, send: Send, sample: Path, repo: Any, finished: Finished) -> None:
    change(sample, finished)
    before, server.rights = repo.files(), "read"
    plan = send(dry_run=True)
    assert (plan.commit, str(plan.changes)) == (None, "1 added, 2 changed, 1 removed, 4 same")
    assert (plan.sizes["figures/two.png"], plan.sizes["figures/one.png"]) == (8, 10_249)
    new = send(repo_id="owner/new", dry_run=True)
    assert (new.created, len(new.changes.added)) == (True, 7)
    assert (repo.files(), list(server.repos)) == (before, [REPO])


NAMES = st.sampled_from(["a", "b", "a/b", "a/c", "README.md", "data/x.parquet", "data/y.parquet"])
CONTENTS = st.sampled_from([b"", b"x", b"y", b"longer"])


@given(st.dictionaries(NAMES, CONTENTS), st.dictionaries(NAMES, st.builds(File, CONTENTS, st.booleans())))
def test_applied_the_changes_give_the_local_files(local: dict[str, bytes], remote: dict[str, File]) -> None:
    found = compare({k: CommitOperationAdd(k, v) for k, v in local.items()}, {k: v.entry(k) for k, v in remote.items()})
    before = {name: file.data for name, file in remote.items()}
    after = {name: data for name, data in before.items() if name not in found.removed}
    assert not set(found.added) & set(after)
    assert all(after[name] != local[name] for name in found.changed), "only what differs is sent"
    after |= {name: local[name] for name in (*found.added, *found.changed)}
    assert after == local
    parts = (found.added, found.changed, found.removed, found.same)
    assert sorted(name for part in parts for name in part) == sorted(local.keys() | remote.keys()), "each file once"
    assert bool(found) == (local != before)
    assert all(list(part) == sorted(part) for part in parts)


def test_private(server: Any, send: Send) -> None:
    send(private=True)
    assert server.repos[REPO].private
    server.make("owner/public")
    server.faults = {"create_repo": lambda: server.make("owner/race")}  # somebody else is quicker
    told = {"public": "is public already; make it private on the Hub first, or omit --private"}
    for repo_id, message in {**told, "race": "somebody else created it meanwhile"}.items():
        with pytest.raises(UserError, match=message):
            send(repo_id=f"owner/{repo_id}", private=True)
        assert len(server.repos[f"owner/{repo_id}"].log) == 1


def test_what_may_not_be_read_is_not_called_damaged(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = PermissionError(13, "Permission denied", str(sample / "manifest.json"))
    with pytest.raises(UserError, match=r"cannot be read: .*json: Permission denied; make"), reading(sample, "sample"):
        raise denied
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=denied))
    with pytest.raises(UserError, match=r"manifest.json: cannot be read: Permission denied; make it readable"):
        read_manifest(sample)


def test_branches(send: Send, sample: Path, repo: Any, finished: Finished, read: Read) -> None:
    before = repo.files()
    repo.tags["v1"] = repo.branches["next"] = repo.branches["main"]
    change(sample, finished)
    assert send(revision="next", confirm=lambda _: False).commit is None
    assert send(revision="next").commit == repo.branches["next"]
    assert not send(revision="next", confirm=pytest.fail).makes
    assert (repo.files("next"), repo.files("main")) == (read(sample), before)
    assert [branch for branch, *_ in repo.log] == ["main", "main", "next"]
    for name in ("v1", "other", "a b", "", repo.branches["main"]):
        with pytest.raises(UserError, match=f"has no branch {name}, only main, next; create it on the Hub first"):
            send(revision=name)
    with pytest.raises(UserError, match="owner/new: does not exist, and would have main alone; omit --revision"):
        send(repo_id="owner/new", revision="next")


@pytest.mark.parametrize("name", ["a b/c", "owner/data/more", "--x/y", "", "data", "https://hub/datasets/a/b"])
def test_names(server: Any, send: Send, name: str) -> None:
    with pytest.raises(UserError, match=r"not a repository name(: the owner is missing)?; give OWNER/[^;]+$"):
        send(repo_id=name)
    assert not server.requests, "they are looked at before anything else"
    assert {send(repo_id=f"{start}datasets/a/b", dry_run=True).repo_id for start in ("", "hf://")} == {"a/b"}


@pytest.mark.parametrize("edit", [{"report.md": b"# Rep0rt\n"}, {"more.txt": b"x"}, {"manifest.json": None}])
def test_what_somebody_else_did_is_not_overwritten(
    server: Any, send: Send, sample: Path, repo: Any, edit: dict[str, bytes | None], read: Read
) -> None:
    repo.edit(**edit)
    before, log = repo.files(), list(repo.log)
    for dry_run in (True, False):
        with pytest.raises(
            UserError,
            match=r"somebody else changed it: commit \w+ there, 'Update', publishes no sample of lemur; .*--force",
        ):
            send(dry_run=dry_run)
    assert (repo.files(), repo.log) == (before, log)
    send(force=True)
    assert repo.files() == read(sample)


def test_a_folder_of_another_kind_is_not_replaced(server: Any, send: Send, sample: Path, finished: Finished) -> None:
    server.make(REPO)
    assert not send().created, "an empty repository is fine"
    with pytest.raises(UserError, match=r"commit \w+ there, 'Publish sample: .*', publishes no other of lemur"):
        send(finished(sample, "other"))
    send(force=True)


@pytest.mark.parametrize(
    ("rights", "told"),
    [
        (None, "the Hub does not know who you are; run `hf auth login`"),
        ("read", "no permission: You don't have the rights to do this; run `hf auth login` with a token"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_rights(server: Any, send: Send, rights: str | None, told: str, there: bool) -> None:
    if there:
        server.make(REPO)
    server.rights = rights
    with pytest.raises(UserError) as caught:
        send()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(len(repo.log) == 1 for repo in server.repos.values())


def test_a_folder_that_changes(server: Any, send: Send, sample: Path, finished: Finished) -> None:
    """Before its checks, after them, and while it is asked for."""

    def verify_then_replace(folder: Path, *, jobs: int | None = None) -> list[Check]:
        checks = verify_folder(folder)
        change(sample, finished)
        return checks

    with pytest.raises(UserError, match=r"manifest.json was changed meanwhile; nothing was published, run again"):
        send(verify=verify_then_replace)
    table = next((sample / "data").glob("train-*.parquet"))
    with pytest.raises(UserError, match=r": data/train-\S+\.parquet was changed meanwhile; nothing was published"):
        send(confirm=lambda _: bool(table.write_bytes(b"other")))
    assert len(server.repos[REPO].log) == 1
    with pytest.raises(UserError, match=r"digests: data/train-.* differs from its digest; see `lemur verify`"):
        send()
    assert server.requests["create_commit"] == 0


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


def test_what_the_hub_would_leave_out_is_told(send: Send, repo: Any) -> None:
    repo.edit(**{".gitignore": b"*.png"})
    for force in (True, False):
        with pytest.raises(UserError, match=r"contains .gitignore, with which the Hub ignores files; remove it there"):
            send(force=force)


@pytest.mark.parametrize("step", ["list_repo_refs", "create_repo", "repo_info", "list_repo_tree", "create_commit"])
def test_faults(server: Any, send: Send, sample: Path, read: Read, step: str) -> None:
    """A fault is told, and a rerun makes the folder whole, in one commit, also if only the answer was lost."""
    for what in (503, "drop", "lose"):
        server.faults, server.requests = {step: what}, Counter()
        with pytest.raises(RetryableError, match="run the same command again: ") as caught:
            send()
        assert "\n" not in str(caught.value)
        assert server.requests["create_commit"] <= 1
        server.faults = {}
        send()
        repo = server.repos.pop(REPO)
        assert repo.files() == read(sample)
        assert len(repo.log) == 2


def test_a_silent_server_is_not_waited_for(secret_rules: Path, sample: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub = Hub(f"http://127.0.0.1:{silent.getsockname()[1]}", answer_seconds=0.3)
        started = time.monotonic()
        with pytest.raises(RetryableError, match=r"the Hub cannot be reached: .*; run the same command again"):
            publish(sample, REPO, verify=verify_folder, hub=hub)
        assert time.monotonic() - started < 60


def test_a_job_of_ci_that_gets_no_token_is_told(server: Any, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("no identity")

    monkeypatch.setattr("manifests.publishing.hub.get_token", refuse)
    server.rights = None
    with pytest.raises(UserError, match="the Hub does not know who you are"):
        send()


def test_a_commit_comes_in_between(server: Any, send: Send) -> None:
    repo = server.make(REPO)
    server.faults = {"create_commit": lambda: repo.edit(**{"theirs.txt": b"x"})}
    with pytest.raises(UserError, match="came in between; run again to compare") as caught:
        send()
    assert not isinstance(caught.value, RetryableError)
    assert repo.files() == {"theirs.txt": b"x"}
    server.faults = {"create_commit": 413}
    with pytest.raises(UserError, match="the Hub refuses with status 413: ordered by the test"):
        send(force=True)


@pytest.mark.parametrize("step", ["list_repo_refs", "create_commit", "repo_info", "list_repo_tree"])
def test_the_token_is_in_no_message(
    server: Any, send: Send, fetch: Fetch, sample: Path, step: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Not even where the server repeats it."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    send()
    (sample / "manifest.json").write_text((sample / "manifest.json").read_text() + "\n")
    server.message, told = f"bad token {TOKEN}", []
    for status in (400, 401, 403, 503):
        server.faults = {step: status}
        for work in (send, lambda: fetch(force=True)):
            try:
                work()
            except UserError as error:
                told.append(str(error))
    assert len(told) >= 4
    assert TOKEN not in "".join([*told, *capfd.readouterr(), caplog.text])


def test_the_whole_way(server: Any, lemur: Any, sample: Path, tmp_path: Path, read: Read) -> None:
    done = lemur("-q", "publish", sample, "--repo-id", REPO, "--yes", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert len(summary["added"]) == 7
    pulled = lemur("pull", REPO, "--out", tmp_path / "new" / "out")
    assert (pulled.returncode, pulled.stderr) == (0, "")
    assert pulled.stdout.endswith(f"as the manifest states; commit {summary['commit']}\n")
    assert read(tmp_path / "new" / "out") == read(sample)
    assert all(check.ok for check in verify_folder(tmp_path / "new" / "out"))


def test_what_is_printed(server: Any, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_publish(sample, dry_run=True)
    dry = capsys.readouterr().out
    counts = f"{REPO} at main: 7 added, 0 changed, 0 removed, 0 same"
    assert dry.splitlines()[-1] == f"{counts}; the repository would be created; nothing was published (dry run)"
    assert "add       10.0 KiB  figures/one.png\n" in dry
    run_publish(sample, yes=True)
    head = server.repos[REPO].branches["main"]
    assert capsys.readouterr().out == dry[: dry.index(REPO)] + f"{counts}; commit {head}\n"
    run_publish(sample, yes=True)
    assert capsys.readouterr().out == f"{REPO} at main: nothing to publish, all 7 files there are the same\n"


@pytest.mark.parametrize("options", [{"dry_run": True}, {"yes": True}])
def test_what_fails_its_checks_is_neither_published_nor_planned(server: Any, sample: Path, options: Any) -> None:
    def verify(folder: Path) -> list[Check]:
        return [Check("guarantee 4", ok=False, detail="a group is divided")]

    with pytest.raises(UserError, match="guarantee 4: a group is divided"):
        run_publish(sample, verify=verify, **options)


def test_a_dry_run_without_hub(
    server: Any, sample: Path, finished: Finished, read: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    """It shows files and findings; of many files of a kind the last ones are counted, and --json lists them."""
    server.faults = {"list_repo_refs": "drop"}
    for number in range(30):
        (sample / f"more-{number:02d}.txt").write_text("text\n")
    run_publish(finished(sample), dry_run=True)
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in lines] == [*sorted(read(sample))[:20], "17 more files"]
    assert last.startswith(f"{REPO} at main: 37 files, ")
    assert "not compared with what is there: " in last
    run_publish(sample, dry_run=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["added"] == sorted(read(sample))
    for number in range(5):
        (sample / f"more-{number:02d}.txt").write_text(f"token hf_{ALNUM[:33]}{number}\n")
    with pytest.raises(UserError, match=r"^.*more-00.txt, .*\(and 2 more above\).*:( --not-secret \w{12}){5}$"):
        run_publish(finished(sample), dry_run=True)
    refused = [line.split()[1] for line in capsys.readouterr().err.splitlines() if line.startswith("refused")]
    assert refused == ["more-03.txt,", "more-04.txt,"]


@pytest.mark.parametrize("answer", ["y\n", "n\n"])
def test_a_terminal_is_asked(
    server: Any, sample: Path, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    with pytest.raises(UserError, match="no terminal to confirm on; add --yes, or --dry-run"):
        run_publish(sample)
    assert not server.requests
    sys.stdin.isatty = lambda: True  # type: ignore[method-assign]
    run_publish(sample)
    printed = capsys.readouterr()
    told, _, asked = printed.err.partition(f"Publish this on {REPO}? [y/N]")
    assert "add       10.0 KiB  figures/one.png" in told
    assert asked, printed.err
    assert (REPO in server.repos) == (answer == "y\n")
    assert printed.out.startswith(f"{REPO} at main: 7 added")
    assert ("nothing was published" in printed.out) == (answer == "n\n")


POINTS = 5
_HASH = re.compile(r"[0-9a-f]{32,}")
#: Python's `tempfile` writes a file of such a name, to see whether a folder can be written to.
_PROBE = re.compile(r"[a-z0-9_]{8}")
#: Runs the command on a Hub in files; counts what it writes, creates, renames, removes and starts, and kills it there.
_COUNTING = """
import atexit, os, sys
from pathlib import Path
from tests.builders.fake_hub import FakeHub
home, left, seen = Path.home(), int(os.environ.pop("KILL_AT")), 0
FakeHub(home / "hub", home / "hub.pickle").install()
def count(event, arguments):
    global seen
    writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "subprocess.Popen", "sqlite3.connect"):
        seen += 1
        if seen == left:
            os.kill(os.getpid(), 9)
sys.addaudithook(count)
atexit.register(lambda: print("CHANGES", seen, file=sys.stderr))
from lemur import main
main()
"""


def list_files(folder: Path) -> list[str]:
    """List the files below a folder; those named by an address are named alike."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".measured")
    files = (path for path in files if not _PROBE.fullmatch(path.name))
    return sorted(_HASH.sub("HASH", path.relative_to(folder).as_posix()) for path in files)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_killed(sample: Path, tmp_path: Path, secret_rules: Path, read: Read) -> None:
    before = read(sample)

    def run(home: Path, kill_at: int) -> subprocess.CompletedProcess[str]:
        """Publish, and be killed at a change of the file system; 0 for never."""
        for name in ("tmp", "cache"):
            (home / name).mkdir(parents=True, exist_ok=True)
        shutil.copytree(secret_rules, home / "cache" / "secrets", dirs_exist_ok=True)  # behind a link: compiled again
        places: dict[str, Any] = {"HOME": home, "TMPDIR": home / "tmp", "LEMUR_CURATOR_CACHE": home / "cache"}
        places |= {"PYTHONPATH": Path(__file__).parents[3], "NO_COLOR": 1, "KILL_AT": kill_at}
        environment = os.environ | {name: str(place) for name, place in places.items()}
        command = [sys.executable, "-P", "-c", _COUNTING, "publish", str(sample), "--repo-id", REPO, "--yes"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)

    def look(home: Path) -> Any:
        repo = FakeHub(home, home / "hub.pickle").repos[REPO]
        return repo.files(), len(repo.log), *(list_files(home / name) for name in ("tmp", "cache"))

    whole = run(tmp_path / "whole", 0)
    assert whole.returncode == 0, whole.stderr
    changes = int(whole.stderr.rpartition("CHANGES ")[2])

    def kill(point: int) -> bool:
        home = tmp_path / f"at-{point}"
        killed, after = run(home, 1 + changes * point // POINTS), run(home, 0)
        assert after.returncode == 0, after.stderr
        assert look(home) == look(tmp_path / "whole")
        assert not [path for path in home.rglob("*") if path.suffix in (".part", ".old", ".moved")]
        return killed.returncode == -signal.SIGKILL

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(kill, range(POINTS))) == POINTS
    assert read(sample) == before
    assert not [path.name for path in sample.parent.iterdir() if path.name.startswith("." + sample.name)]
