"""Verdicts: how far blocks come in the real sandbox, and what is kept, run again and told of them."""

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extract import validate
from extract.index import Index
from extract.validate import ATTEMPTS, Candidate, Verdict, check_text, validate_all
from lemur_core.sandbox import Job, Limits, Outcome, Status
from manifests.records import Level

IMPORTS = "import torch\nfrom torch import nn\n\n\n"


def block(forward: str, init: str = "pass", arguments: str = "x", before: str = "") -> str:
    body, lines = "\n        ".join(init.split("\n")), "\n        ".join(forward.split("\n"))
    return f"""{IMPORTS}{before}
class A(nn.Module):
    def __init__(self):
        super().__init__()
        {body}

    def forward(self, {arguments}):
        {lines}
"""


def candidate(text: str, block: str = "lib::A", **changes: Any) -> Candidate:
    return Candidate(**{"key": block, "name": "A", "code": text, "origin": ("lib",), **changes})


STUCK = "while True:\n    try:\n        while True: torch.ones(9)\n    except BaseException: pass"
HUNGRY = "kept = []\nwhile True: kept.append(bytes(2**26))"  # pages that nobody touches: the limit is met at once

#: The block, how far it comes, the kind, and a part of the error.
BLOCKS: dict[str, tuple[str, Level, str | None, str]] = {
    "good": (block("return self.a(x)", "self.a = nn.Linear(8, 8)"), "backward", None, ""),
    "no gradient": (block("return x.argmax()"), "forward", "not_differentiable", "backward(x=torch.randn((2, 32, 16, 16))): ValueError: no output depends"),
    "wrong types": (block("return x + 'a'"), "constructed", "type_error", "forward(x=torch.randn((2, 32, 16, 16))): TypeError: unsupported operand"),
    "no construction": (block("return x", "raise ValueError('no such size')"), "executed", "runtime_error", "A(): ValueError: no such size (line 9: raise ValueError('no such size'))"),
    "endless": (block("while True: pass"), "constructed", "timeout_error", "forward(x=torch.randn((2, 32, 16, 16))): TimeoutError: ran too long (line 12: while True: pass)"),
    "stuck": (block(STUCK), "executed", "timeout", "CPU"),
    "hungry": (block(HUNGRY), "executed", "out_of_memory", ""),
    "crash": (block("import ctypes\nctypes.string_at(0)"), "executed", "crashed", "SIGSEGV"),
    "crash at once": (block("return x", before="import os\nos.abort()\n"), "compiled", "crashed", "SIGABRT"),
    "raises at once": (block("return x", before="1 / 0\n"), "compiled", "zero_division_error", "(line 5: 1 / 0)"),
    "lacks a package": (block("return x", before="import no_such_package\n"), "compiled", "missing_dependency", "no_such_package"),
    "needs its origin": (block("return x", before="import fractions\n"), "compiled", "missing_dependency", "the block's origin"),
    "exits": (block("raise SystemExit(3)"), "constructed", "system_exit", "SystemExit: 3"),
    "defines nothing": ("X = 1\n", "compiled", "not_defined", "no class A"),
}  # fmt: skip


def candidates(names: Iterable[str] = BLOCKS) -> list[Candidate]:
    return [candidate(BLOCKS[name][0], name, origin=("lib", "fractions")) for name in names]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index(tmp_path_factory.mktemp("index") / "facts.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def judged(index: Index) -> list[tuple[Candidate, Verdict]]:
    """What the real sandbox says of all blocks, with limits that end a hanging one soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validate, "_SEARCH_LIMITS", Limits(wall_seconds=60, cpu_seconds=6, memory_bytes=2**31))
        patch.setattr(validate, "ATTEMPTS", 1)
        return list(validate_all(candidates(), index, "backward", jobs=1))


@pytest.fixture(scope="module")
def verdicts(judged: list[tuple[Candidate, Verdict]]) -> dict[str, Verdict]:
    return {found.key: verdict for found, verdict in judged}


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_how_far_a_block_comes(verdicts: dict[str, Verdict], name: str) -> None:
    _, level, kind, said = BLOCKS[name]
    verdict = verdicts[name]
    assert (verdict.level, verdict.kind) == (level, kind), verdict.error
    assert said in (verdict.error or "")
    assert "\n" not in (verdict.error or "")
    assert (verdict.error is None) == (level == "backward")
    assert not verdict.reused
    assert verdict.seconds > 0


@pytest.mark.slow
def test_arguments_and_observations_are_kept_from_constructed_on(verdicts: dict[str, Verdict]) -> None:
    for name, (_, level, _, _) in BLOCKS.items():
        assert (verdicts[name].arguments is not None) == (level in ("constructed", "forward", "backward")), name
        assert (verdicts[name].observed is not None) == (verdicts[name].arguments is not None)
    assert json.loads(verdicts["good"].arguments or "") == {
        "init": {"args": [], "kwargs": {}},
        "forward": {"args": [], "kwargs": {"x": "torch.randn((2, 16, 8))"}},
    }
    assert json.loads(verdicts["good"].observed or "")["parameters"] == 72


@pytest.mark.slow
def test_verdicts_come_in_the_order_of_the_candidates(judged: list[tuple[Candidate, Verdict]]) -> None:
    assert [found.key for found, _ in judged] == list(BLOCKS)


@pytest.mark.slow
def test_a_second_time_nothing_runs(
    index: Index, verdicts: dict[str, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("a sandbox was started")

    monkeypatch.setattr(validate, "Sandbox", refuse)
    again = list(validate_all(reversed(candidates()), index, "backward", jobs=1))
    assert [found.key for found, _ in again] == list(reversed(BLOCKS))
    for found, verdict in again:
        assert verdict == dataclasses.replace(verdicts[found.key], reused=True, seconds=0.0)


# --- with a sandbox that answers as it is told ------------------------------------------------------------------------


class Answers:
    """In the place of the sandbox: gives prepared outcomes, the last one of a key again and again."""

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
            self.ran.append((job.key, job.payload["goal"]))
            if job.payload["goal"] == "executed" and not job.key.startswith("low"):
                yield Outcome(job.key, Status.OK, {"level": "executed", "kind": None, "error": None}, seconds=0.5)
                continue
            waiting = self.prepared[job.key]
            yield waiting.pop(0) if len(waiting) > 1 else waiting[0]


def said(key: str, level: str = "backward", kind: str | None = None, status: Status = Status.OK) -> Outcome:
    value = {"level": level, "kind": kind, "error": kind} if status is Status.OK else None
    return Outcome(key, status, value, "" if status is Status.OK else f"{status}\n of it", seconds=1.0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers()
    monkeypatch.setattr(validate, "Sandbox", made)
    return made


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "facts.sqlite") as opened:
        yield opened


def verdicts_of(keys: Sequence[str], index: Index, goal: Level = "backward", **options: Any) -> list[Verdict]:
    given = [candidate(f"# {key}", key) for key in keys]
    found = list(validate_all(given, index, goal, jobs=3, **options))
    assert [one for one, _ in found] == given
    return [verdict for _, verdict in found]


@pytest.mark.parametrize(
    ("status", "runs"),
    [
        (Status.TIMEOUT, ATTEMPTS),
        (Status.CRASHED, ATTEMPTS),
        (Status.OUT_OF_MEMORY, 1),
        (Status.DENIED, 1),
        (Status.OVER_LIMIT, 1),
        (Status.ERROR, 1),
    ],
)
def test_only_failures_of_resources_are_tried_again(
    answers: Answers, pauses: list[float], fresh: Index, status: Status, runs: int
) -> None:
    answers.prepared["a"] = [said("a", status=status)]
    (verdict,) = verdicts_of("a", fresh)
    assert answers.ran == [("a", "backward")] * runs + [("a", "executed")]
    assert (verdict.level, verdict.kind, verdict.error) == ("executed", status.value, f"{status} of it")
    assert verdict.seconds == 1.5
    assert len(pauses) == runs - 1
    assert pauses == sorted(set(pauses))  # each longer than the one before
    assert all(options["workers"] == 1 for options in answers.opened[1:])


def test_an_attempt_that_comes_through_ends_the_retries(answers: Answers, pauses: list[float], fresh: Index) -> None:
    answers.prepared["a"] = [said("a", status=Status.CRASHED), said("a")]
    (verdict,) = verdicts_of("a", fresh)
    assert verdict.level == "backward"
    assert answers.ran == [("a", "backward")] * 2
    assert len(pauses) == 1


def test_a_file_that_dies_at_once_is_not_executed(answers: Answers, pauses: list[float], fresh: Index) -> None:
    answers.prepared["low"] = [said("low", status=Status.DENIED)]
    (verdict,) = verdicts_of(["low"], fresh)
    assert (verdict.level, verdict.kind) == ("compiled", "denied")
    assert answers.ran == [("low", "backward"), ("low", "executed")]


def test_below_the_search_one_run_is_enough(answers: Answers, pauses: list[float], fresh: Index) -> None:
    answers.prepared["low"] = [said("low", status=Status.OUT_OF_MEMORY)]
    (verdict,) = verdicts_of(["low"], fresh, "executed")
    assert (verdict.level, verdict.kind) == ("compiled", "out_of_memory")
    assert answers.ran == [("low", "executed")]


def test_only_failures_run_again_when_asked(answers: Answers, fresh: Index) -> None:
    levels = {"a": "backward", "b": "constructed", "c": "backward", "d": "forward"}
    answers.prepared = {key: [said(key, level, "why")] for key, level in levels.items()}
    first = verdicts_of(list(levels), fresh)
    answers.ran.clear()
    assert verdicts_of(list(levels), fresh) == [dataclasses.replace(v, reused=True, seconds=0.0) for v in first]
    assert answers.ran == []
    answers.prepared["d"] = [said("d")]
    again = verdicts_of(list(levels), fresh, retry_failed=True)
    assert [key for key, _ in answers.ran] == ["b", "d"]
    assert [verdict.reused for verdict in again] == [True, False, True, False]
    assert again[3].level == "backward"
    answers.ran.clear()
    assert verdicts_of("d", fresh)[0].level == "backward"  # the better outcome has taken the place of the first
    assert answers.ran == []


def test_the_order_holds_whatever_is_known(answers: Answers, fresh: Index) -> None:
    keys = [f"k{number}" for number in range(12)]
    answers.prepared = {key: [said(key, kind=key)] for key in keys}
    verdicts_of(keys[1::3], fresh)
    verdicts_of([keys[0], keys[-1]], fresh)
    assert [verdict.kind for verdict in verdicts_of(keys, fresh)] == keys
    assert len(answers.ran) == len(keys)
    assert verdicts_of([], fresh) == []


def test_what_a_job_is_given(fresh: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hints: dict[str, object] = {"init": [], "companions": []}
    job = validate._job(candidate("X", hints=hints, origin=("torch", "lib")), [tmp_path], "backward")
    assert job.payload == {
        "code": "X",
        "name": "A",
        "origin": ["lib"],  # torch is what blocks run on
        "folders": [str(tmp_path)],
        "goal": "backward",
        "hints": hints,
    }
    assert validate._job(candidate("X"), [], "executed").limits == validate.LIMITS
    assert job.limits == validate._SEARCH_LIMITS


@pytest.mark.parametrize(
    ("changes", "folders", "goal", "differs"),
    [
        ({}, ["f"], "backward", False),
        ({"key": "another"}, ["f"], "backward", False),
        ({"code": "Y"}, ["f"], "backward", True),
        ({"name": "B"}, ["f"], "backward", True),
        ({"origin": ("other",)}, ["f"], "backward", True),
        ({"hints": {"init": [1]}}, ["f"], "backward", True),
        ({}, ["g"], "backward", True),
        ({}, ["x/f"], "backward", False),
        ({}, ["f"], "forward", True),
    ],
)
def test_what_an_outcome_is_kept_by(changes: dict[str, Any], folders: list[str], goal: Level, differs: bool) -> None:
    kept = candidate("X", hints={"init": []}).cache_key([Path("f")], "backward")
    other = candidate("X", **{"hints": {"init": []}, **changes}).cache_key([Path(f) for f in folders], goal)
    assert (kept != other) == differs


def test_hints_do_not_matter_where_none_are_used() -> None:
    keys = {candidate("X", hints=hints).cache_key([], "executed") for hints in (None, {"init": [1]})}
    assert len(keys) == 1


# --- without execution ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "fault", "undefined", "goal", "expected"),
    [
        ("X = 1", "", (), "emitted", ("emitted", None)),
        ("X = 1", "", (), "parsed", ("parsed", None)),
        ("X = 1", "", (), "compiled", ("compiled", None)),
        ("X = 1", "", (), "backward", ("compiled", None)),
        ("X = y", "", ("y", "z"), "backward", ("emitted", "undefined_name")),
        ("def (", "invalid syntax", (), "backward", ("emitted", "syntax_error")),
        ("return 1", "'return' outside function", (), "backward", ("parsed", "compile_error")),
    ],
)
def test_text(code: str, fault: str, undefined: tuple[str, ...], goal: Level, expected: tuple[str, str | None]) -> None:
    emitted: Any = SimpleNamespace(code=code, fault=fault, undefined=undefined)
    verdict = check_text(emitted, goal)
    assert (verdict.level, verdict.kind) == expected
    assert (verdict.error is None) == (verdict.kind is None)
    if undefined:
        assert verdict.error == "undefined in the emitted file: y, z"
    if verdict.kind == "compile_error":
        assert verdict.error == "does not compile: 'return' outside function"
