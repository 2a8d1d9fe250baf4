"""One attempt: whatever foreign code does is an outcome that says how far it came."""

import contextlib
import random
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from extract.arguments.trials import (
    AttemptError,
    BlockNamespace,
    attempt,
    count_elements,
    differentiate,
    fill_unset,
    has_shape,
    seed_all,
    unset_is_nan,
)


class Odd(BaseException):
    """An error that is no Exception."""


def raises(error: BaseException) -> Callable[[], Any]:
    def action() -> Any:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no"), "runtime_error"),
        (TypeError("no"), "type_error"),
        (ModuleNotFoundError("no"), "missing_dependency"),
        (SystemExit(3), "system_exit"),
        (RecursionError("deep"), "recursion_error"),
        (Odd("no"), "odd"),
    ],
)
def test_any_error_becomes_a_mistake(error: BaseException, kind: str) -> None:
    with pytest.raises(AttemptError) as caught:
        attempt(raises(error))
    assert caught.value.cause is error
    assert caught.value.kind == kind
    assert caught.value.message.startswith(f"{type(error).__name__}:")
    assert caught.value.progress == (0, 0)
    assert caught.value.where() == ""


@pytest.mark.parametrize("error", [MemoryError(), PermissionError("no"), KeyboardInterrupt()])
def test_what_the_sandbox_judges_passes(error: BaseException) -> None:
    with pytest.raises(type(error)):
        attempt(raises(error))


def test_the_value_comes_back_and_warnings_do_not() -> None:
    def action() -> int:
        warnings.warn("foreign", DeprecationWarning, stacklevel=1)
        return 7

    assert attempt(action) == 7


@pytest.mark.parametrize("error", [None, ValueError("no"), MemoryError()])
def test_nothing_is_left_behind(error: BaseException | None) -> None:
    hooks = len(nn.modules.module._global_forward_hooks)
    handler = signal.getsignal(signal.SIGVTALRM)
    with contextlib.suppress(AttemptError, MemoryError):
        attempt(raises(error) if error is not None else lambda: None)
    assert len(nn.modules.module._global_forward_hooks) == hooks
    assert signal.getsignal(signal.SIGVTALRM) == handler
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_an_endless_loop_ends() -> None:
    def action() -> None:
        while True:
            pass

    started = time.process_time()
    with pytest.raises(AttemptError) as caught:
        attempt(action, seconds=0.1)
    assert caught.value.kind == "timeout_error"
    assert caught.value.message == "TimeoutError: ran too long"
    assert time.process_time() - started < 2


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


def test_a_mistake_tells_how_far_it_came(load: Any) -> None:
    module = load(MODULE)()
    with pytest.raises(AttemptError) as caught:
        attempt(lambda: module(torch.zeros(2, 4)))
    first = caught.value
    assert first.progress[0] == 2
    assert first.lines == ("return self.three(x)",)
    assert "return self.three(x)" in first.where()
    with pytest.raises(AttemptError) as caught:
        attempt(lambda: module(torch.zeros(2, 5)))
    second = caught.value
    assert second.progress[0] == 0
    assert second.progress < first.progress
    assert second.lines == ("x = self.one(x)",)
    assert first.where() == f" (line {first.numbers[-1]}: return self.three(x))"


def test_a_statement_of_several_lines_is_told_as_one(load: Any) -> None:
    module = load(MODULE.replace("self.two(y)", "absent(y)"))()
    with pytest.raises(AttemptError) as caught:
        attempt(lambda: module(torch.zeros(2, 4)))
    assert caught.value.lines == ("x = self.helper( x, 2, )", "return absent(y)")
    assert caught.value.message == "NameError: name 'absent' is not defined"


def test_messages_are_one_short_line() -> None:
    with pytest.raises(AttemptError) as caught:
        attempt(raises(ValueError("a\n  b\t" + "c" * 900)))
    assert caught.value.message.startswith("ValueError: a b ccc")
    assert len(caught.value.message) == 400
    assert "\n" not in caught.value.message


# --- names, seeds -----------------------------------------------------------------------------------------------------


def test_names_are_evaluated_anew() -> None:
    namespace = BlockNamespace({"torch": torch, "width": 3})
    one, two = namespace.value("torch.zeros(width)"), namespace.value("torch.zeros(width)")
    assert one is not two
    assert one.shape == (3,)
    assert namespace.value("[len(str(item)) for item in range(width)]") == [1, 1, 1]
    with pytest.raises(NameError):
        namespace.value("absent")


def test_seeds_reach_every_generator() -> None:
    drawn = []
    for _ in range(2):
        seed_all()
        drawn.append((float(torch.rand(1)), random.random(), float(np.random.rand())))
    assert drawn[0] == drawn[1]
    seed_all(1)
    assert (float(torch.rand(1)), random.random(), float(np.random.rand())) != drawn[0]


# --- memory that nobody wrote to --------------------------------------------------------------------------------------

UNSET = {
    "torch.empty(3, 4)": (3, 4),
    "torch.Tensor(3, 4)": (3, 4),
    "torch.ones(2, 2).new_empty(5)": (5,),
    "torch.empty(2, 2, dtype=torch.bfloat16)": (2, 2),
}


class Holder(nn.Module):
    def __init__(self, tensor: torch.Tensor, *, buffer: bool = False) -> None:
        super().__init__()
        if buffer:
            self.register_buffer("held", tensor)
        else:
            self.held = nn.Parameter(tensor, requires_grad=tensor.is_floating_point())


@pytest.mark.parametrize("buffer", [False, True], ids=["parameter", "buffer"])
@pytest.mark.parametrize("expression", UNSET)
def test_unset_memory_becomes_the_same_values(expression: str, buffer: bool) -> None:
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
        assert bool(torch.isfinite(module.held).all())
        found.append(module.held.detach().clone())
    assert torch.equal(*found)
    assert found[0].shape == UNSET[expression]
    assert 0 < float(found[0].float().abs().max()) < 0.2


def test_only_what_is_unset_is_filled() -> None:
    held = torch.tensor([1.0, float("nan"), float("inf"), 0.0])
    module = Holder(held)
    fill_unset(module)
    assert module.held[0] == 1.0
    assert torch.isinf(module.held[2])
    assert module.held[3] == 0.0
    assert bool(torch.isfinite(module.held[1]))
    module = Holder(torch.arange(3), buffer=True)
    fill_unset(module)
    assert module.held.tolist() == [0, 1, 2]


def test_unset_complex_memory_is_filled() -> None:
    with unset_is_nan():
        module = Holder(torch.empty(3, dtype=torch.complex64), buffer=True)
    fill_unset(module)
    assert bool(torch.isfinite(torch.view_as_real(module.held)).all())


def test_outside_memory_is_as_ever() -> None:
    with unset_is_nan():
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ValueError, match="no"), unset_is_nan():
        raise ValueError("no")
    assert not torch.are_deterministic_algorithms_enabled()


def test_sizes_leave_lazy_tensors_out() -> None:
    assert count_elements(nn.BatchNorm1d(4)) == 4 * 4 + 1
    assert count_elements(nn.LazyLinear(4)) == 0
    assert not has_shape(nn.LazyLinear(4).weight)
    assert has_shape(nn.Linear(2, 4).weight)
    fill_unset(nn.LazyLinear(4))


# --- backward ---------------------------------------------------------------------------------------------------------


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, requires_grad=True)


def test_gradients_of_parameters() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert differentiate(module, module(torch.randn(5, 3)), []) == (4, 4)
    module[0].requires_grad_(False)
    module.zero_grad()
    assert differentiate(module, {"a": [module(torch.randn(5, 3))], "b": "text"}, []) == (2, 2)


def test_gradients_of_inputs_where_there_are_no_parameters() -> None:
    x = ones(2, 3)
    assert differentiate(nn.ReLU(), nn.functional.relu(x), [x, {"mask": torch.ones(2)}]) == (1, 1)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(lambda x: x.to(torch.complex64) * 1j, id="complex"),
        pytest.param(lambda x: x.to(torch.bfloat16), id="bfloat16"),
        pytest.param(lambda x: (x, x.argmax(), torch.zeros(0)), id="mixed"),
        pytest.param(lambda x: x.sum(), id="scalar"),
    ],
)
def test_outputs_of_all_types(output: Callable[[torch.Tensor], Any]) -> None:
    x = ones(2, 3)
    assert differentiate(nn.ReLU(), output(x * 2), [x]) == (1, 1)


def test_a_sparse_gradient() -> None:
    module = nn.Embedding(4, 2, sparse=True)
    assert differentiate(module, module(torch.tensor([1, 1, 2])), []) == (1, 1)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (lambda x: x.detach(), "no output depends"),
        (lambda x: None, "no output depends"),
        (lambda x: x[:0], "no output depends"),
        (lambda x: (x - x).sqrt(), "not finite"),
        (lambda x: ones(2) * 2, "no gradient reaches any of its 1"),
    ],
)
def test_what_is_not_differentiable(output: Callable[[torch.Tensor], Any], reason: str) -> None:
    x = ones(2, 3)
    with pytest.raises(ValueError, match=reason):
        differentiate(nn.ReLU(), output(x), [x])
