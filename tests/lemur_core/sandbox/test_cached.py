"""The sandbox that remembers: what is run, what is run again, and what an outcome is kept by; with one that answers as told."""

import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lemur_core.files.errors import UserError
from lemur_core.sandbox import Job, Limits, Outcome, Status, cached
from lemur_core.sandbox.cached import (
    ATTEMPTS,
    TRANSIENT,
    CachedSandbox,
    code_digest,
    describe_failure,
    workers_within_memory,
)

ENTRY = "lemur_core.sandbox.net:run_network"


pytestmark = pytest.mark.usefixtures("guest")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    # Of the retries alone: threads of other packages sleep in the same process.
    monkeypatch.setattr(cached, "time", SimpleNamespace(sleep=found.append))
    return found


def ask(keys: Iterable[str], **options: Any) -> list[Outcome]:
    with CachedSandbox(**options) as box:
        return list(box.run(Job(key, ENTRY, {"code": key}) for key in keys))


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_what_may_be_passing_is_tried_again(guest: Any, pauses: list[float], status: Status) -> None:
    """At the end, when all else is done, after pauses that grow."""
    guest.answers["a"] = status
    runs = ATTEMPTS if status in TRANSIENT else 1
    found = ask("ab")
    assert guest.ran == ["a", "b", *"a" * (runs - 1)]
    assert pauses == [2.0, 4.0][: runs - 1]
    assert {(one.key, one.status) for one in found} == {("a", status), ("b", Status.OK)}
    assert len(guest.opened) == 1


def test_an_attempt_that_comes_through_ends_the_retries(guest: Any, pauses: list[float]) -> None:
    guest.answers["a"] = (Status.CRASHED, Status.TIMEOUT, Status.OK)
    assert [one.status for one in ask("a")] == [Status.OK]
    assert pauses == [2.0, 4.0]
    guest.answers["b"] = Status.OUT_OF_MEMORY
    assert ask("b", transient=frozenset({Status.TIMEOUT}))[0].status is Status.OUT_OF_MEMORY
    guest.answers["c"] = Status.TIMEOUT
    with CachedSandbox() as box:
        (once,) = box.run([Job("c", ENTRY, {"code": "c"})], retries=False)
    assert once.status is Status.TIMEOUT
    assert len(pauses) == 2


def test_only_what_is_new_runs_and_the_order_holds(guest: Any) -> None:
    guest.answers["b"] = Status.ERROR
    first = ask("bd")
    guest.jobs.clear(), guest.opened.clear()
    assert ask("db") == [replace(one, reused=True, seconds=0.0) for one in reversed(first)]
    assert ask([]) == guest.opened == []
    assert [one.key for one in ask("abcde")] == list("abcde")
    assert guest.ran == ["a", "c", "e"]


def test_what_is_not_usable_any_more_runs_again(guest: Any) -> None:
    guest.answers["b"] = Status.ERROR
    ask("ab")
    guest.jobs.clear()
    guest.answers.clear()
    found = ask("ab", usable=lambda _job, outcome: outcome.status is Status.OK)
    assert guest.ran == ["b"]
    assert [(one.status, one.reused) for one in found] == [(Status.OK, True), (Status.OK, False)]
    assert ask("b")[0].status is Status.OK  # the better outcome has taken the place of the first


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"key": "another"}, False),
        ({"payload": {"code": "y"}}, True),
        ({"entry": "curate.folder.probe:measure"}, True),
        ({"limits": Limits(cpu_seconds=1)}, True),
        ({"limits": Limits()}, False),
    ],
)
def test_what_an_outcome_is_kept_by(changes: dict[str, Any], differs: bool) -> None:
    job = Job("a", ENTRY, {"code": "x"})
    with CachedSandbox() as box:
        assert (box.key_of(job) != box.key_of(replace(job, **changes))) == differs


def test_an_outcome_is_kept_by_our_code_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what an entry imports, however: nothing else counts."""
    texts = {
        "compose/probe_guest": "from train import parts\nimport train.more.deep\n",
        "parts": "",
        "more/deep": "",
        "other": "",
    }
    for name, text in texts.items():
        (tmp_path / "train" / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / f"{name}.py").write_text(text)
    monkeypatch.setattr(cached, "_ROOT", tmp_path)
    # In each process a file is read once.
    monkeypatch.setattr(cached, "_read_module", cached._read_module.__wrapped__)
    digests = [code_digest.__wrapped__("train.compose.probe_guest:run")]
    for name in texts:
        (tmp_path / "train" / f"{name}.py").write_text(f"{texts[name]}# changed\n")
        digests.append(code_digest.__wrapped__("train.compose.probe_guest:run"))
    assert len(set(digests)) == len(texts)
    assert digests[-1] == digests[-2]


def test_a_damaged_store_is_dropped_and_one_that_cannot_be_opened_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox" / "outcomes.sqlite").write_bytes(b"no database" * 100)
    assert ask("a")[0].status is Status.OK
    assert "outcomes.sqlite is damaged and was dropped" in capsys.readouterr().err

    def refuse(path: Path, **_: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(sqlite3, "connect", refuse)
    with pytest.raises(UserError, match=r"unable to open database file; .*set LEMUR_CURATOR_CACHE"):
        ask("a")


def test_reasons_are_one_line_and_workers_bounded_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_failure(Outcome("a", Status.ERROR, error="KeyError: /home/x/y.py\n  frame")) == "KeyError: y.py"
    assert describe_failure(Outcome("a", Status.ERROR)) == "error"
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 5 * 2**18}[name])
    assert workers_within_memory(8, Limits(memory_bytes=2 * 2**30)) == 2
    assert workers_within_memory(1, Limits(memory_bytes=2 * 2**30)) == 1
    assert workers_within_memory(8, Limits(memory_bytes=6 * 2**30)) == 1
