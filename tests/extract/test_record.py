"""Calls that are recorded while blocks run: expressions that give the same values, and blocks that run by them."""

import dataclasses
import enum
import functools
import os
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from extract.arguments.hints import HintFinder
from extract.extractor import BlockExtractor
from extract.recording.recorder import ArgumentRecorder, RecordedCall, SourceRecorder
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


FILE = {"Mode": Mode, "Pair": Pair, "Settings": Settings, "Taker": Taker}
SCOPE = {**FILE, "torch": torch, "np": np, "nn": nn, "F": nn.functional, "functools": functools, "types": types}

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
def recorder(monkeypatch: pytest.MonkeyPatch) -> ArgumentRecorder:
    monkeypatch.setattr(Taker, "__module__", "block")
    return ArgumentRecorder(FILE, frozenset({"Taker"}))


@pytest.mark.parametrize(("value", "text"), VALUES, ids=[text for _, text in VALUES])
def test_expressions(recorder: ArgumentRecorder, value: object, text: str) -> None:
    with recorder:
        Taker(value, named=value)(value)
    (call,) = recorder.calls["Taker"]
    assert call == {"init": {"args": [text], "kwargs": {"named": text}}, "forward": {"args": [text], "kwargs": {}}}
    again = eval(text, dict(SCOPE))
    if isinstance(value, torch.Tensor):
        assert (again.shape, again.dtype) == (value.shape, value.dtype)
    elif isinstance(value, np.ndarray):
        np.testing.assert_array_equal(again, value)
    elif not isinstance(value, functools.partial):
        assert again == value


def test_a_module_is_built_again(recorder: ArgumentRecorder) -> None:
    with recorder:
        Taker(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))(torch.ones(1))
    (call,) = recorder.calls["Taker"]
    assert call["init"]["args"] == ["nn.Sequential(nn.Linear(2, 3), nn.ReLU())"]


@pytest.mark.parametrize("value", [object(), lambda x: x, torch.eye(2).to_sparse(), "x" * 20_000])
def test_what_has_no_expression_is_not_recorded(recorder: ArgumentRecorder, value: object) -> None:
    with recorder:
        Taker(value)(torch.ones(1))
        Taker()(value)
    assert recorder.calls == {}


class Gate(nn.Module):
    def __init__(self, dim: int, rate: float = 0.5, act: object = None) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor, mask: object = None, scale: int = 1) -> torch.Tensor:
        return x


def test_defaults_by_name_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "__module__", "block")
    recorder = ArgumentRecorder({}, frozenset({"Gate"}))
    with recorder:
        Gate(8, rate=0.5, act=None)(torch.ones(2), mask=None, scale=2)
        Gate(8, rate=0, act=1)(torch.ones(2), scale=True)  # equal, but of another type
    first, second = recorder.calls["Gate"]
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


def test_arguments_that_new_does_not_pass_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "__module__", "block")
    recorder = ArgumentRecorder({}, frozenset({"Hub"}))
    with recorder:
        Hub(8, act=nn.ReLU)(torch.ones(2))
    assert [item["init"] for item in recorder.calls["Hub"]] == [{"args": ["8"], "kwargs": {"act": "nn.ReLU"}}]


def test_only_calls_that_return_and_few_of_a_kind(recorder: ArgumentRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    call = nn.Module.__call__
    with recorder:
        for size in (1, 1, 2, 3, 4):
            Taker(size)(1)
        monkeypatch.setattr(Taker, "forward", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Taker(5)()
    assert [item["init"]["args"] for item in recorder.calls["Taker"]] == [["1"], ["2"], ["3"]]
    assert nn.Module.__call__ == call
    nn.Linear(2, 2)(torch.ones(2))
    assert len(recorder.calls["Taker"]) == 3


def test_classes_that_state_no_module_are_passed() -> None:
    space: dict[str, Any] = {"nn": nn}  # without a `__name__`, as of generated code
    exec("Made = type('Made', (nn.Sequential,), {})", space)
    recorder = SourceRecorder(frozenset({"net"}), 100)
    with recorder:
        space["Made"]()(torch.ones(1))
    recorder.forget()
    assert recorder.calls == {}


PACKAGE = read_files(__file__, "record.md", "Package")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")
@pytest.mark.parametrize("names", [["Model", "Fold"], ["Fold"]], ids=["of the same run", "that constructs it"])
def test_a_block_runs_by_what_a_model_passes_to_it(tmp_path: Path, names: list[str]) -> None:
    """The search cannot guess the arguments of `Fold`; `Model` runs by itself, and passes them."""
    package = tmp_path / "folding"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, text in PACKAGE.items():
        (package / name).write_text(text)
    with BlockExtractor(sources=[str(tmp_path)], jobs=1) as extractor:
        rows = {result.row.name: result.row for result in extractor.extract_multiple_blocks(names)}
    assert {name: row.level for name, row in rows.items()} == dict.fromkeys(names, "backward")
    assert "'fold': [3, 5]" in (rows["Fold"].arguments or "")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")
def test_nothing_is_searched_for_blocks_that_are_only_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints read every file of the source; a run that constructs nothing does without them."""
    (tmp_path / "parts.py").write_text(PACKAGE["parts.py"])
    monkeypatch.setattr(HintFinder, "hints_for", lambda *_: pytest.fail("hints were searched for"))
    with BlockExtractor(sources=[str(tmp_path)], level="executed", jobs=1) as extractor:
        (result,) = extractor.extract_multiple_blocks(["Fold"])
    assert result.row.level == "executed"


def test_calls_nearest_to_the_defaults_go_before_smaller_ones() -> None:
    recorder = SourceRecorder(frozenset({"net"}), 10)
    for size, settings in ((1, {"apply_act": "False"}), (3, {}), (2, {"groups": "1"})):
        recorder.keep("net:Norm", RecordedCall({"init": {"args": ["64"], "kwargs": settings}}, {}, size))
    assert [call.size for call in recorder.calls["net:Norm"]] == [3, 1, 2]
