"""Verdicts: levels that blocks reach in the real sandbox, and which results are cached, repeated and reported."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extract.proofs import validate
from extract.proofs.validate import BlockVerdict, SearchRequest, check_text, validate_all
from extract.resolve.index import FactsIndex
from lemur_core.sandbox import Job, Limits, Outcome, Status, cached
from lemur_core.sandbox.cached import ATTEMPTS
from manifests.records import Level
from tests.builders.class_text import class_text
from tests.builders.suites import read_table, table

IMPORTS = "import torch\nfrom torch import nn\n\n\n"


def block(forward: str, init: str = "pass", arguments: str = "x", before: str = "") -> str:
    return f"{IMPORTS}{before}{class_text(forward, init, arguments)}"


STUCK = "while True:\n    try:\n        while True: torch.ones(9)\n    except BaseException: pass"
HUNGRY = "kept = []\nwhile True: kept.append(bytes(2**26))"  # pages that nobody touches: the limit is met at once

#: The block, how far it comes, the kind, and a part of the error.
BLOCKS: dict[str, tuple[str, Level, str | None, str]] = read_table(__file__, "validate.md", "Blocks", globals())


REQUESTS = [(name, SearchRequest(code, "A", ("lib", "fractions"))) for name, (code, *_) in BLOCKS.items()]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FactsIndex]:
    with FactsIndex(tmp_path_factory.mktemp("index") / "facts.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def verdicts(index: FactsIndex) -> Iterator[dict[str, BlockVerdict]]:
    """Outcomes of all blocks in the real sandbox, with limits that stop a hanging one soon."""
    with pytest.MonkeyPatch.context() as patch:
        limits = Limits(wall_seconds=60, cpu_seconds=6, memory_bytes=2**31)
        for stage in ("SEARCH_AND_VISIT", "SEARCH"):
            patch.setattr(validate, stage, dataclasses.replace(getattr(validate, stage), limits=limits))
        patch.setattr(cached, "time", SimpleNamespace(sleep=lambda _seconds: None))
        yield dict(validate_all(REQUESTS, index, "backward", jobs=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_how_far_a_block_comes(verdicts: dict[str, BlockVerdict], name: str) -> None:
    _, level, kind, said = BLOCKS[name]
    verdict = verdicts[name]
    assert (verdict.level, verdict.kind) == (level, kind), verdict.error
    assert said in (verdict.error or "")
    assert "\n" not in (verdict.error or "")
    assert (verdict.error is None) == (level == "backward")


@pytest.mark.slow
def test_arguments_and_observations_are_kept_from_constructed_on(verdicts: dict[str, BlockVerdict]) -> None:
    for name, (_, level, _, _) in BLOCKS.items():
        assert (verdicts[name].arguments is not None) == (level in ("constructed", "forward", "backward")), name
        assert (verdicts[name].observed is not None) == (verdicts[name].arguments is not None)
    assert json.loads(verdicts["good"].arguments_text or "") == {
        "init": {"args": [], "kwargs": {}},
        "forward": {"args": [], "kwargs": {"x": "torch.randn((2, 12, 8))"}},
    }
    assert (verdicts["good"].observed or {})["parameters"] == 72


@pytest.mark.slow
def test_a_second_time_nothing_runs(
    index: FactsIndex, verdicts: dict[str, BlockVerdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("a sandbox was started")

    monkeypatch.setattr(cached, "Sandbox", refuse)
    # What the limit ended may end otherwise another time.
    kept = [(key, request) for key, request in REQUESTS if verdicts[key].kind != "timeout_error"]
    assert len(BLOCKS) - len(kept) <= 1
    again = dict(validate_all(reversed(kept), index, "backward", jobs=1))
    assert again == {key: verdicts[key] for key, _ in kept}


class Answers:
    """Fake sandbox with prepared outcomes; the last one of a key repeats."""

    def __init__(self) -> None:
        self.prepared: dict[str, list[Outcome]] = {}
        self.ran: list[tuple[str, object]] = []
        self.opened: list[dict[str, Any]] = []

    def __call__(self, **options: Any) -> "Answers":
        self.opened.append(options)
        return self

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        for job in jobs:
            self.ran.append((job.key, "visit" if job.payload["visit"] else job.payload["goal"]))
            if job.payload["goal"] == "executed" and not job.key.startswith("low"):
                yield Outcome(job.key, Status.OK, {"level": "executed", "kind": None, "error": None}, seconds=0.5)
                continue
            waiting = self.prepared[job.key]
            yield waiting.pop(0) if len(waiting) > 1 else waiting[0]


def said(key: str, level: str = "backward", kind: str | None = None, status: Status = Status.OK) -> Outcome:
    call = {"args": [], "kwargs": {}}
    observed = {"parameters": 0, "trainable": 0, "buffers": 0, "layers": {}}
    facts = {"arguments": {"init": call, "forward": call}, "observed": observed}
    value = {"level": level, "kind": kind, "error": kind, **facts} if status is Status.OK else None
    return Outcome(key, status, value, "" if status is Status.OK else f"{status} of it\nfile 3", seconds=1.0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers()
    monkeypatch.setattr(cached, "Sandbox", made)
    return made


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    # Of the retries alone: threads of other packages sleep in the same process.
    found: list[float] = []
    monkeypatch.setattr(cached, "time", SimpleNamespace(sleep=found.append))
    return found


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[FactsIndex]:
    with FactsIndex(tmp_path / "facts.sqlite") as opened:
        yield opened


def verdicts_of(keys: Sequence[str], index: FactsIndex, goal: Level = "backward", **options: Any) -> list[BlockVerdict]:
    given = [(key, SearchRequest(f"# {key}", "A", ("lib",))) for key in keys]
    found = dict(validate_all(given, index, goal, jobs=3, **options))
    return [found[key] for key in keys]


@pytest.mark.parametrize(
    ("status", "runs"),
    [(Status.TIMEOUT, 1), (Status.CRASHED, ATTEMPTS), (Status.OUT_OF_MEMORY, 1), (Status.DENIED, 1)],
)
def test_a_search_that_ends_the_process_says_nothing_of_the_rungs_below(
    answers: Answers, pauses: list[float], fresh: FactsIndex, status: Status, runs: int
) -> None:
    answers.prepared["a"] = [said("a", status=status)]
    (verdict,) = verdicts_of("a", fresh)
    assert answers.ran == [("a", "visit"), *[("a", "backward")] * runs, ("a", "executed")]
    assert (verdict.level, verdict.kind, verdict.error) == ("executed", status.value, f"{status} of it")
    assert pauses == [2.0, 4.0][: runs - 1]


@pytest.mark.parametrize("goal", ["backward", "executed"])
def test_a_file_that_dies_at_once_is_not_executed(
    answers: Answers, pauses: list[float], fresh: FactsIndex, goal: Level
) -> None:
    answers.prepared["low"] = [said("low", status=Status.DENIED)]
    (verdict,) = verdicts_of(["low"], fresh, goal)
    assert (verdict.level, verdict.kind) == ("compiled", "denied")
    first = [("low", "visit"), ("low", "backward")] if goal == "backward" else []
    assert answers.ran == [*first, ("low", "executed")]


def test_only_failures_run_again_when_asked(answers: Answers, fresh: FactsIndex) -> None:
    levels = {"a": "backward", "b": "constructed", "c": "backward", "d": "forward"}
    answers.prepared = {key: [said(key, level, "why")] for key, level in levels.items()}
    first = verdicts_of(list(levels), fresh)
    answers.ran.clear()
    assert verdicts_of(list(levels), fresh) == first
    assert answers.ran == []
    answers.prepared["d"] = [said("d")]
    again = verdicts_of(list(levels), fresh, retry_failed=True)
    assert [key for key, _ in answers.ran] == ["b", "d"]
    assert again[3].level == "backward"


def test_what_a_clock_ended_is_run_again(answers: Answers, fresh: FactsIndex) -> None:
    answers.prepared = {"a": [said("a", "constructed", "timeout_error"), said("a")]}
    assert [verdicts_of("a", fresh)[0].kind for _ in range(3)] == ["timeout_error", None, None]
    assert len(answers.ran) == 2


@table(__file__, "validate.md", "Text", globals())
def test_text(code: str, fault: str, undefined: tuple[str, ...], goal: Level, expected: tuple[str, str | None]) -> None:
    emitted: Any = SimpleNamespace(code=code, fault=fault, undefined=undefined)
    verdict = check_text(emitted, goal)
    assert (verdict.level, verdict.kind) == expected
    assert (verdict.error is None) == (verdict.kind is None)
    if undefined:
        assert verdict.error == "undefined in the emitted file: y, z"
    if verdict.kind == "compile_error":
        assert verdict.error == "does not compile: 'return' outside function"
