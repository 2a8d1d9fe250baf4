"""A stage: how its payloads are sent and its answers are checked, on receipt and on recall; with a sandbox that answers as told."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from lemur_core.sandbox import Failure, Limits, Outcome, Status, cached
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.sandbox.stage import Reply, SandboxStage
from tests.builders.suites import table

GUEST = "lemur_core.sandbox.net:run_network"
pytestmark = pytest.mark.usefixtures("guest")


@dataclass(frozen=True, slots=True)
class Question:
    code: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    lines: tuple[int, ...]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    level: Literal["built", "ran"]
    seconds: float
    steps: Mapping[str, Step]


STAGE = SandboxStage[Answered | Failure](GUEST, Answered | Failure, Limits(), retries=False)
GROUPS = SandboxStage[Mapping[str, int | Failure]](GUEST, Mapping[str, int | Failure], Limits(), retries=False)
WAITED = Outcome("", Status.TIMEOUT, error="used almost no CPU for 30 seconds", waited=True)
GOOD = {"level": "ran", "seconds": 1, "steps": {"eval": {"lines": [3, 4]}}}


def ask(guest: Any, answer: Any) -> Reply[Answered | Failure]:
    guest.answers["x"] = answer
    with CachedSandbox() as box:
        (reply,) = STAGE.run(box, {"a": Question("x", (1, 2))})
    return reply


def test_a_payload_is_its_fields_and_an_answer_an_instance(guest: Any) -> None:
    reply = ask(guest, GOOD)
    assert (reply.key, reply.answer) == ("a", Answered("ran", 1.0, {"eval": Step((3, 4))}))
    (job,) = guest.jobs
    assert (job.entry, job.payload, job.limits) == (GUEST, {"code": "x", "sizes": (1, 2)}, Limits())
    assert ask(guest, GOOD).outcome.reused
    assert ask(guest, GOOD).answer == reply.answer, "checked on recall, too"
    assert len(guest.jobs) == 1


@table(__file__, "stage.md", "Nonsense is a crash of the job", globals())
def test_nonsense_is_a_crash_of_the_job(guest: Any, answer: Any, where: str) -> None:
    """Nothing is converted, and no traceback reaches the caller."""
    for _ in range(2):  # on receipt and on recall
        reply = ask(guest, answer)
        assert reply.answer is None
        assert (reply.outcome.status, reply.outcome.value) == (Status.CRASHED, None)
        assert reply.outcome.error.startswith("invalid answer: ")
        assert where in reply.outcome.error
        assert len(reply.outcome.error) <= 200


def test_a_job_without_an_answer(guest: Any) -> None:
    guest.answers["said"] = {"error": "no class Net"}
    with CachedSandbox() as box:
        (said,) = STAGE.run(box, {"a": Question("said")})
    assert said.answer == Failure("no class Net")
    reply = ask(guest, Status.ERROR)
    assert reply.answer is None
    assert reply.failure(300) == Failure("error: line one")
    assert reply.reason(300) == "line one"
    answer: Any = {}
    for _ in range(100_000):
        answer = {"steps": answer}
    reply = STAGE.read(Outcome("a", Status.OK, answer))
    assert reply.reason(200).startswith("invalid answer")


@table(__file__, "stage.md", "Retries", globals())
def test_retries(guest: Any, monkeypatch: pytest.MonkeyPatch, retries: bool, status: Any, runs: int) -> None:
    monkeypatch.setattr(cached, "time", SimpleNamespace(sleep=lambda _seconds: None))
    guest.answers["x"] = status
    stage = SandboxStage[Answered](GUEST, Answered, Limits(), retries=retries)
    with CachedSandbox() as box:
        (reply,) = stage.run(box, {"a": Question("x")})
        (again,) = stage.run(box, {"a": Question("x")})
    assert reply.outcome.status is getattr(status, "status", status)
    assert (again.outcome.status, again.outcome.waited) == (reply.outcome.status, reply.outcome.waited)
    assert len(guest.jobs) == runs


def test_a_group_that_fails_is_halved_until_the_culprit_is_alone(guest: Any) -> None:
    guest.answers |= {"abc": Status.CRASHED, "a": {"a": 1}, "bc": {"b": 2}, "b": {"b": 2}, "c": {"c": "nonsense"}}
    guest.answers |= {"d": {"d": {"error": "no original"}}, "e": {"b": 1}}
    with CachedSandbox() as box:
        answers = GROUPS.run_groups(box, ["abc", "d", "e"], lambda group: Question("".join(group)), str)
    assert answers == {
        "a": 1,
        "b": 2,
        "c": Failure("invalid answer: c.int: Input should be a valid integer"),
        "d": Failure("no original"),
        "e": Failure("invalid answer: about other items"),
    }


def test_progress_is_counted_by_the_stage(guest: Any, capsys: pytest.CaptureFixture[str]) -> None:
    guest.answers["x"] = GOOD
    stage = SandboxStage[Answered](GUEST, Answered, Limits(), label="trace", unit="networks")
    with CachedSandbox() as box:
        assert len(list(stage.run(box, {"a": Question("x"), "b": Question("x", (1,))}))) == 2
    assert "trace" in capsys.readouterr().err
