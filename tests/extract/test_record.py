"""Calls that are recorded: expressions that give the same values, and blocks that run by them."""

import contextlib
import dataclasses
import enum
import functools
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from extract.arguments.hints import HintFinder
from extract.extractor import BlockExtractor
from extract.recording.calls import find_origin
from extract.recording.recorder import RecordedCall, SourceRecorder
from tests.builders.suites import read_files


class Mode(enum.Enum):
    FAST = "fast"


class Pair(NamedTuple):
    first: int
    second: int


@dataclasses.dataclass
class Settings:
    width: int = 8
    act: type = nn.SiLU


class Taker(nn.Module):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(1)


class Constant(int):
    """A number with a name of its own."""


SCOPE = {
    "Mode": Mode,
    "Pair": Pair,
    "Settings": Settings,
    "Taker": Taker,
    "torch": torch,
    "np": np,
    "nn": nn,
    "F": nn.functional,
    "functools": functools,
    "types": types,
}

#: Values, and the expressions that they become.
VALUES: list[tuple[object, str]] = [
    (None, "None"),
    (0.5, "0.5"),
    (float("inf"), "float('inf')"),
    ((3,), "(3,)"),
    ([1, (2, "x")], "[1, (2, 'x')]"),
    ({"a": 1}, "{'a': 1}"),
    (nn.GELU, "nn.GELU"),
    (nn.functional.gelu, "F.gelu"),
    (torch.relu, "torch.relu"),
    (functools.partial(nn.LayerNorm, eps=1e-6), "functools.partial(nn.LayerNorm, eps=1e-06)"),
    (Mode.FAST, "Mode.FAST"),
    (Pair(1, 2), "Pair(1, 2)"),
    (Settings(4), "Settings(width=4)"),
    (types.SimpleNamespace(a=1), "types.SimpleNamespace(a=1)"),
    (torch.Size((2, 3)), "(2, 3)"),
    (torch.float16, "torch.float16"),
    (np.array([1.5, float("nan")]), "np.array([1.5, float('nan')], dtype='float64')"),
    (Constant(2), "2"),
    (torch.zeros(2, 3), "torch.randn((2, 3))"),
    (torch.zeros(2, dtype=torch.float64), "torch.randn((2,), dtype=torch.float64)"),
    (torch.tensor([[4, 5]]), "torch.tensor([[4, 5]], dtype=torch.int64)"),
    (torch.arange(3, 23), "torch.randint(3, 23, (20,), dtype=torch.int64)"),
    (torch.ones(2, dtype=torch.bool), "torch.ones((2,), dtype=torch.bool)"),
]  # fmt: skip


@pytest.fixture
def recorder() -> SourceRecorder:
    return SourceRecorder(frozenset({__name__.partition(".")[0]}), 100)


def list_calls(recorder: SourceRecorder, cls: type) -> list[dict[str, Any]]:
    return [record.calls for record in recorder.calls.get(f"{__name__}:{cls.__name__}", ())]


@pytest.mark.parametrize(("value", "text"), VALUES, ids=[text for _, text in VALUES])
def test_expressions(recorder: SourceRecorder, value: object, text: str) -> None:
    with recorder:
        Taker(value, named=value)(value)
    (call,) = list_calls(recorder, Taker)
    assert call == {"init": {"args": [text], "kwargs": {"named": text}}, "forward": {"args": [text], "kwargs": {}}}
    again = eval(text, dict(SCOPE))
    if isinstance(value, torch.Tensor):
        assert (again.shape, again.dtype) == (value.shape, value.dtype)
    elif isinstance(value, np.ndarray):
        np.testing.assert_array_equal(again, value)
    elif not isinstance(value, functools.partial):
        assert again == value


def test_a_module_is_built_again(recorder: SourceRecorder) -> None:
    with recorder:
        Taker(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))(torch.ones(1))
    (call,) = list_calls(recorder, Taker)
    assert call["init"]["args"] == ["nn.Sequential(nn.Linear(2, 3), nn.ReLU())"]


@pytest.mark.parametrize("value", [object(), lambda x: x, torch.eye(2).to_sparse(), "x" * 20_000])
def test_what_has_no_expression_is_not_recorded(recorder: SourceRecorder, value: object) -> None:
    with recorder:
        Taker(value)(torch.ones(1))
        Taker()(value)
    assert recorder.calls == {}


class Gate(nn.Module):
    def __init__(self, dim: int, rate: float = 0.5, act: object = None) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor, mask: object = None, scale: int = 1) -> torch.Tensor:
        return x


def test_defaults_by_name_are_left_out(recorder: SourceRecorder) -> None:
    with recorder:
        Gate(8, rate=0.5, act=None)(torch.ones(2), mask=None, scale=2)
        Gate(8, rate=0, act=1)(torch.ones(2), scale=True)  # equal, but of another type
    first, second = list_calls(recorder, Gate)
    assert (first["init"]["kwargs"], first["forward"]["kwargs"]) == ({}, {"scale": "2"})
    assert (second["init"]["kwargs"], second["forward"]["kwargs"]) == ({"rate": "0", "act": "1"}, {"scale": "True"})


class Hub(nn.Module):
    """Arguments that a `__new__` of its own does not pass on."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls)

    def __init__(self, width: int, *, act: type) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_arguments_that_new_does_not_pass_on(recorder: SourceRecorder) -> None:
    with recorder:
        Hub(8, act=nn.ReLU)(torch.ones(2))
    assert [item["init"] for item in list_calls(recorder, Hub)] == [{"args": ["8"], "kwargs": {"act": "nn.ReLU"}}]


def test_only_calls_that_return_and_few_of_a_kind(recorder: SourceRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    call = nn.Module.__call__
    with recorder:
        for size in (1, 1, 2, 3, 4):
            Taker(size)(1)
        monkeypatch.setattr(Taker, "forward", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Taker(5)()
    assert [item["init"]["args"] for item in list_calls(recorder, Taker)] == [["1"], ["2"], ["3"]]
    assert nn.Module.__call__ == call
    nn.Linear(2, 2)(torch.ones(2))
    assert len(list_calls(recorder, Taker)) == 3


def test_classes_that_state_no_module_are_passed() -> None:
    space: dict[str, Any] = {"nn": nn}  # without a `__name__`, as of generated code
    exec("Made = type('Made', (nn.Sequential,), {})", space)
    recorder = SourceRecorder(frozenset({"net"}), 100)
    with recorder:
        space["Made"]()(torch.ones(1))
    recorder.forget()
    assert recorder.calls == {}


PACKAGE = read_files(__file__, "record.md", "Package")
DETECTORS = read_files(__file__, "record.md", "Classes in arguments")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")
def test_classes_in_recorded_arguments_are_in_the_file_when_it_is_tried(tmp_path: Path) -> None:
    """`Pyramid` checks the class of its part, and a registry finds `Scaled` by a string."""
    package = tmp_path / "detectors"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, text in DETECTORS.items():
        (package / name).write_text(text)
    with BlockExtractor(sources=[str(tmp_path)], level="forward", jobs=1) as extractor:
        rows = {result.row.name: result.row for result in extractor.extract_multiple_blocks(["Detector", "Both"])}
    assert {name: (row.level, row.arguments_from) for name, row in rows.items()} == {
        "Detector": ("forward", "recorded"),
        "Both": ("forward", "recorded"),
    }
    assert "Pyramid(Last(8))" in (rows["Detector"].arguments or "")
    assert "MODELS.register_module('Scaled', module=Scaled)" in (rows["Both"].code or "")


@pytest.mark.parametrize(
    ("ways", "origin"),
    [
        (["guessed above", "recorded"], "recorded"),
        (["guessed above", "call"], "call site"),
        (["guessed above", "search"], "guessed above"),
        (["search"], "search"),
    ],
)
def test_where_arguments_are_from(ways: list[str], origin: str) -> None:
    hints = {"init": [{"args": ["8"], "kwargs": [], "way": way} for way in ways]}
    assert find_origin('{"init": {"args": ["8"], "kwargs": {}}}', hints) == origin


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")
def test_nothing_is_searched_for_blocks_that_are_only_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints read every file of the source; a run that constructs nothing does without them."""
    (tmp_path / "parts.py").write_text(PACKAGE["parts.py"])
    monkeypatch.setattr(HintFinder, "hints_for", lambda *_: pytest.fail("hints were searched for"))
    with BlockExtractor(sources=[str(tmp_path)], level="executed", jobs=1) as extractor:
        (result,) = extractor.extract_multiple_blocks(["Fold"])
    assert result.row.level == "executed"


class Scorer(nn.Module):
    """A base of which only subclasses are constructed."""

    def __init__(self, part: nn.Module, width: int = 1) -> None:
        super().__init__()
        self.part, self.width = part, width

    def forward(self, x: torch.Tensor, scale: int = 1) -> torch.Tensor:
        return self.part(x) / scale


class PlainScorer(Scorer):
    pass


class WideScorer(Scorer):
    def __init__(self, width: int) -> None:
        super().__init__(nn.ReLU(), width=width)


class OtherScorer(WideScorer):
    def forward(self, x: torch.Tensor, scale: int = 1) -> torch.Tensor:
        return x


class Outer(nn.Module):
    """A model that calls its part."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor, scale: Any) -> torch.Tensor:
        return self.part(x, scale)


def record_scorers(calls: Callable[[], object]) -> list[tuple[dict[str, Any], list[str], bool]]:
    recorder = SourceRecorder(frozenset({__name__.partition(".")[0]}), 100, bases=[Scorer])
    init = Scorer.__init__
    with recorder:
        calls()
    assert Scorer.__init__ is init
    recorder.forget()
    records = recorder.calls.get(f"{__name__}:Scorer", [])
    return [(r.calls["init"], r.calls.get("forward", {"args": []})["args"], r.worked) for r in records]


@pytest.mark.parametrize(
    ("made", "kwargs"),
    [(lambda: PlainScorer(nn.ReLU()), {}), (lambda: WideScorer(4), {"width": "4"})],
    ids=["inherited", "of its own"],
)
def test_calls_of_subclasses_are_those_of_their_base(made: Callable[[], nn.Module], kwargs: dict[str, str]) -> None:
    recorded = record_scorers(lambda: made()(torch.ones(1)))
    assert recorded == [({"args": ["nn.ReLU()"], "kwargs": kwargs}, ["torch.randn((1,))"], True)]


def test_a_base_whose_forward_never_runs_has_no_calls() -> None:
    assert record_scorers(lambda: OtherScorer(4)(torch.ones(1))) == []


def test_inner_calls_that_fail_come_after_those_that_work() -> None:
    """They may lack what a block has: a compiled operator, or values. An outer one may be a guess."""
    init = {"args": ["nn.Linear(1, 1)"], "kwargs": {}}

    def call(outer: bool, *scales: int) -> None:
        scorer = Scorer(nn.Linear(1, 1))
        for scale in scales:
            with contextlib.suppress(TypeError):
                (Outer(scorer) if outer else scorer)(torch.ones(1), scale or [])

    assert [worked for _, _, worked in record_scorers(lambda: call(True, 0, 0))] == [False]
    both = record_scorers(lambda: call(True, 0, 2))
    assert both == [(init, ["torch.randn((1,))", "2"], True), (init, ["torch.randn((1,))", "[]"], False)]
    assert record_scorers(lambda: call(False, 0)) == [(init, [], True)]


def test_containers_that_are_filled_later_are_written_with_what_they_hold(recorder: SourceRecorder) -> None:
    with recorder:
        for kind in (nn.ModuleList, nn.Sequential):
            layers: Any = kind()
            layers.append(nn.ReLU())
            Taker(layers)(torch.ones(1))
    texts = [call["init"]["args"] for call in list_calls(recorder, Taker)]
    assert texts == [["nn.ModuleList([nn.ReLU()])"], ["nn.Sequential(nn.ReLU())"]]


def test_calls_nearest_to_the_defaults_go_before_smaller_ones() -> None:
    recorder = SourceRecorder(frozenset({"net"}), 10)
    for size, settings in ((1, {"apply_act": "False"}), (3, {}), (2, {"groups": "1"})):
        recorder.keep("net:Norm", RecordedCall({"init": {"args": ["64"], "kwargs": settings}}, {}, size))
    assert [call.size for call in recorder.calls["net:Norm"]] == [3, 1, 2]
