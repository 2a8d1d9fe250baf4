"""One attempt: whatever foreign code does is an outcome that says how far it came."""

import contextlib
import random
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from extract.arguments.constructing import Arguments
from extract.arguments.trials import (
    AttemptError,
    BlockNamespace,
    attempt,
    differentiate,
    fill_unset,
    seed_all,
    unset_is_nan,
)


class Odd(BaseException):
    """An error that is no Exception."""


def fail(action: Callable[[], Any], **limits: Any) -> AttemptError:
    with pytest.raises(AttemptError) as caught:
        attempt(action, **limits)
    return caught.value


def raises(error: BaseException) -> Callable[[], Any]:
    def action() -> Any:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("a\n  b\t" + "c" * 900), "runtime_error", f"ValueError: a b {'c' * 396} …"),
        (TypeError("no"), "type_error", "TypeError: no"),
        (ModuleNotFoundError("no"), "missing_dependency", "ModuleNotFoundError: no"),
        (SystemExit(3), "system_exit", "SystemExit: 3"),
        (RecursionError("deep"), "recursion_error", "RecursionError: deep"),
        (Odd("no"), "odd", "Odd: no"),
    ],
)
def test_any_error_becomes_an_outcome_of_one_short_line(error: BaseException, kind: str, message: str) -> None:
    found = fail(raises(error))
    assert (found.cause, found.kind, found.progress, found.where()) == (error, kind, (0, 0), "")
    assert found.message == message


@pytest.mark.parametrize("error", [MemoryError(), PermissionError("no"), KeyboardInterrupt()])
def test_what_the_sandbox_judges_passes(error: BaseException) -> None:
    with pytest.raises(type(error)):
        attempt(raises(error))


@pytest.mark.parametrize("error", [None, ValueError("no"), MemoryError()])
def test_the_value_comes_back_without_warnings_and_nothing_is_left_behind(error: BaseException | None) -> None:
    def action() -> int:
        warnings.warn("foreign", DeprecationWarning, stacklevel=1)
        return 7 if error is None else raises(error)()

    def state() -> list[object]:
        hooks = len(nn.modules.module._global_forward_hooks)
        return [hooks, signal.getsignal(signal.SIGVTALRM), signal.getitimer(signal.ITIMER_VIRTUAL), sys.gettrace()]

    before = state()
    with contextlib.suppress(AttemptError, MemoryError):
        assert attempt(action, steps=9) == 7
    assert state() == before


def test_an_endless_loop_ends(load: Any, search: Any) -> None:
    """After so many lines of the block, or else after some CPU time."""
    text = "class A(nn.Module):\n    def __init__(self, most=9**9):\n        while most: most -= 1\n"
    with pytest.raises(AttemptError, match=r"more than 200,000 lines ran"):
        search(text).constructor.make(Arguments(), limited=True)
    cls = load(text)
    found = fail(cls, steps=1000)
    assert (found.kind, found.message) == ("too_many_steps_error", "TooManyStepsError: more than 1,000 lines ran")
    assert attempt(lambda: cls(9), steps=1000)
    found = fail(cls, seconds=0.1)
    assert (found.kind, found.message) == ("timeout_error", "TimeoutError: ran too long")


MODULE = """
class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 5), nn.Linear(4, 4)

    def forward(self, x):
        x = self.one(x)
        x = self.helper(
            x,
            2,
        )
        return self.three(x)

    def helper(self, y, times):
        return self.two(y)
"""


def test_a_message_is_the_same_in_every_folder() -> None:
    """Also where the folder is longer than what is kept of a message."""
    texts = {
        fail(raises(OSError(f"cannot read {Path('/', *parts, 'w.pth')} at 0x7f{len(parts):010}"))).message
        for parts in (("tmp", "job-1"), ("a" * 200, "b" * 200, "c" * 200))
    }
    assert texts == {"OSError: cannot read w.pth at 0x…"}


def test_a_failure_tells_how_far_it_came(load: Any) -> None:
    module = load(MODULE)()
    late, early = fail(lambda: module(torch.zeros(2, 4))), fail(lambda: module(torch.zeros(2, 5)))
    assert (late.progress[0], late.lines) == (2, ("return self.three(x)",))
    assert (early.progress[0], early.lines) == (0, ("x = self.one(x)",))
    assert early.progress < late.progress
    assert late.where() == f" (line {late.numbers[-1]}: return self.three(x))"
    module = load(MODULE.replace("self.two(y)", "absent(y)"))()
    inner = fail(lambda: module(torch.zeros(2, 4)))
    assert inner.lines == ("x = self.helper( x, 2, )", "return absent(y)")


def test_seeds_reach_every_generator_and_names_are_evaluated_anew() -> None:
    def draw(seed: int) -> tuple[float, ...]:
        seed_all(seed)
        return float(torch.rand(1)), random.random(), float(np.random.rand())

    assert draw(0) == draw(0) != draw(1)
    namespace = BlockNamespace({"torch": torch, "width": 3})
    assert namespace.value("torch.zeros(width)") is not namespace.value("torch.zeros(width)")
    assert namespace.value("[len(str(item)) for item in range(width)]") == [1, 1, 1]


UNSET = [
    ("torch.empty(3, 4)", (3, 4)),
    ("torch.Tensor(3, 4)", (3, 4)),
    ("torch.ones(2, 2).new_empty(5)", (5,)),
    ("torch.empty(2, 2, dtype=torch.bfloat16)", (2, 2)),
    ("torch.empty(3, dtype=torch.complex64)", (3,)),
]


class Holder(nn.Module):
    def __init__(self, tensor: torch.Tensor, *, buffer: bool = False) -> None:
        super().__init__()
        if buffer:
            self.register_buffer("held", tensor)
        else:
            self.held = nn.Parameter(tensor, requires_grad=tensor.is_floating_point())


@pytest.mark.parametrize("buffer", [False, True], ids=["parameter", "buffer"])
@pytest.mark.parametrize(("expression", "shape"), UNSET)
def test_unset_memory_becomes_the_same_values(expression: str, shape: tuple[int, ...], buffer: bool) -> None:
    found = []
    for noise in range(2):
        torch.full((64,), 7.0 + noise)  # memory that a later tensor may be given
        with unset_is_nan():
            module = Holder(eval(expression, {"torch": torch}), buffer=buffer)
        assert bool(torch.isnan(module.held).all())
        torch.manual_seed(noise)
        before = torch.random.get_rng_state()
        fill_unset(module)
        assert bool((torch.random.get_rng_state() == before).all())
        found.append(module.held.detach().clone())
    assert torch.equal(*found)
    assert found[0].shape == shape
    assert 0 < float(found[0].abs().float().max()) < 0.2


def test_only_what_is_unset_is_filled() -> None:
    module = Holder(torch.tensor([1.0, float("nan"), float("inf"), 0.0]))
    fill_unset(module)
    assert [module.held[0], module.held[2], module.held[3]] == [1.0, float("inf"), 0.0]
    assert bool(torch.isfinite(module.held[1]))
    module = Holder(torch.arange(3), buffer=True)
    fill_unset(module)
    assert module.held.tolist() == [0, 1, 2]
    with unset_is_nan():
        assert torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ValueError, match="no"), unset_is_nan():
        raise ValueError("no")
    assert not torch.are_deterministic_algorithms_enabled(), "outside, memory is as ever"


def test_gradients_of_parameters() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert differentiate(module, module(torch.randn(5, 3)), []) == (4, 4)
    module[0].requires_grad_(False)
    module.zero_grad()
    assert differentiate(module, {"a": [module(torch.randn(5, 3))], "b": "text"}, []) == (2, 2)
    sparse = nn.Embedding(4, 2, sparse=True)
    assert differentiate(sparse, sparse(torch.tensor([1, 1, 2])), []) == (1, 1)
