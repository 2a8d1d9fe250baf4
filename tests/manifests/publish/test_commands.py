"""`lemur publish` and `lemur pull` as processes: what they print, ask and refuse; the token is never shown."""

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lemur.folders import verify_folder
from lemur_core.files.errors import UserError
from manifests.folders.checks import Check
from manifests.publish import command
from manifests.publish.hub import Hub

TOKEN = "hf_" + "W" * 34
REPO = "owner/data"
Lemur = Callable[..., subprocess.CompletedProcess[str]]
run_publish = partial(command.run_publish, verify=verify_folder)
pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")  # of the client, about itself


def test_the_whole_way(server: Any, lemur: Lemur, sample: Path, tmp_path: Path, read: Callable[..., Any]) -> None:
    done = lemur("publish", sample, "--repo-id", REPO, "--yes", "--json", "--tag", "v1")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert summary["commit"] == server.repos[REPO].tags["v1"]
    assert len(summary["added"]) == 7
    pulled = lemur("pull", REPO, "--out", tmp_path / "out")
    assert (pulled.returncode, pulled.stderr) == (0, "")
    assert pulled.stdout.endswith(f"as the manifest states; commit {summary['commit']}\n")
    assert read(tmp_path / "out") == read(sample)
    assert all(check.ok for check in verify_folder(tmp_path / "out"))


def test_what_is_printed(server: Any, hub: Hub, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_publish(sample, REPO, dry_run=True, hub=hub)
    dry = capsys.readouterr().out
    counts = f"{REPO} at main: 7 added, 0 changed, 0 removed, 0 same"
    assert dry.splitlines()[-1] == f"{counts}; the repository would be created; nothing was published (dry run)"
    assert "add       10.0 KiB  figures/one.png\n" in dry
    run_publish(sample, REPO, yes=True, hub=hub)
    head = server.repos[REPO].branches["main"]
    assert capsys.readouterr().out == dry[: dry.index(REPO)] + f"{counts}; commit {head}\n"
    run_publish(sample, REPO, yes=True, hub=hub)
    assert capsys.readouterr().out == f"{REPO} at main: nothing to publish, all 7 files there are the same\n"


def test_a_dry_run_makes_the_cheap_checks_unless_all_are_asked_for(
    server: Any, hub: Hub, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(folder: Path) -> list[Check]:
        return [Check("guarantee 4", ok=False, detail="a group is divided")]

    command.run_publish(sample, REPO, dry_run=True, verified=False, hub=hub, verify=verify)
    assert "note      of its checks only the digests were made; add --verify" in capsys.readouterr().out
    for options in ({"dry_run": True, "verified": True}, {"yes": True, "verified": False}):
        with pytest.raises(UserError, match="guarantee 4: a group is divided"):
            command.run_publish(sample, REPO, hub=hub, verify=verify, **options)
    (sample / "README.md").write_text("changed\n")
    with pytest.raises(UserError, match=r"digests: README.md differs from its digest"):
        command.run_publish(sample, REPO, dry_run=True, verified=False, hub=hub, verify=verify)


def test_a_dry_run_without_hub_and_token_shows_all_files_and_findings(
    server: Any, sample: Path, finished: Callable[..., Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for number in range(30):
        (sample / f"more-{number:02d}.txt").write_text("text\n")
    monkeypatch.setenv("HF_TOKEN", "")
    nowhere = Hub("http://127.0.0.1:9", sleep=lambda _: None)
    run_publish(finished(sample), REPO, dry_run=True, hub=nowhere)
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == sorted(path for path in _paths(sample))
    assert last.startswith(f"{REPO} at main: 37 files, ")
    assert "not compared with what is there: " in last
    for number in range(5):
        (sample / f"more-{number:02d}.txt").write_text(f"token hf_{'aB3' * 11}{number}\n")
    with pytest.raises(UserError, match=r"^.*\(and 2 more\).*$"):
        run_publish(finished(sample), REPO, dry_run=True, hub=nowhere)
    refused = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("refused")]
    assert refused == [f"more-{number:02d}.txt," for number in range(5)]


def _paths(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["y\n", "n\n"])
def test_a_terminal_is_asked(
    server: Any, sample: Path, hub: Hub, answer: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    run_publish(sample, REPO, hub=hub)
    printed = capsys.readouterr()
    told, _, asked = printed.err.partition(f"Publish this on {REPO}? [y/N]")
    assert "add       10.0 KiB  figures/one.png" in told
    assert asked, printed.err
    assert (REPO in server.repos) == (answer == "y\n")
    assert printed.out.startswith(f"{REPO} at main: " + ("7 added" if answer == "y\n" else "nothing was published"))


def test_nobody_to_ask(server: Any, hub: Hub, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UserError, match="no terminal to confirm on; add --yes, or --dry-run"):
        run_publish(sample, REPO, hub=hub)
    assert not server.requests


@pytest.mark.parametrize("kind", ["refs", "commit", "info", "tree"])
def test_the_token_is_in_no_message(
    server: Any, send: Callable[..., Any], fetch: Callable[..., Any], sample: Path, tmp_path: Path, kind: str,
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Not even where the server repeats it."""
    send()
    (sample / "manifest.json").write_text((sample / "manifest.json").read_text() + "\n")
    server.message = f"bad token {TOKEN}"
    told = []
    for status in (400, 401, 403, 503):
        server.faults = [server.Fault(kind, status, times=100_000)]
        for work in (send, lambda: fetch(force=True)):
            try:
                work()
            except UserError as error:
                told.append(str(error))
    assert len(told) >= 4
    assert TOKEN not in "".join([*told, *capfd.readouterr(), caplog.text])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert ("commit", TOKEN) in server.seen_tokens, "it was sent"


def test_the_token_is_not_printed_by_a_process(server: Any, lemur: Lemur, sample: Path) -> None:
    server.message = f"bad token {TOKEN}"
    server.faults = [server.Fault("create", 400)]
    done = lemur("publish", sample, "--repo-id", REPO, "--yes", HF_DEBUG="1")
    assert done.returncode == 1
    assert "bad token …" in done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_two_at_once(
    server: Any, lemur: Lemur, sample: Path, tmp_path: Path, finished: Callable[..., Path], read: Callable[..., Any]
) -> None:
    """Each commit is one of the two folders, whole; who is too late is told so, or comes after the other."""
    other = Path(shutil.copytree(sample, tmp_path / "other"))
    (other / "report.md").write_text("# The other report\n")
    folders = [sample, finished(other)]
    repo = server.make(REPO)
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda folder: lemur("publish", folder, "--repo-id", REPO, "--yes"), folders))
    commits = [repo.files(commit) for _, commit in repo.log[1:]]
    succeeded = [one for one in done if one.returncode == 0]
    assert len(commits) == len(succeeded) >= 1
    assert all(files in (read(sample), read(other)) for files in commits)
    told = "came in between; run again to compare|somebody else changed it"
    assert all(re.search(told, one.stderr) for one in done if one not in succeeded)
