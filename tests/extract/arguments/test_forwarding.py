"""The search for forward's inputs."""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from extract.arguments import forwarding
from extract.arguments.constructing import Arguments
from extract.arguments.forwarding import Forward, ForwardCall, as_call, call_text, evaluate, run
from extract.arguments.trials import AttemptError, BlockNamespace, TimeBudget
from extract.arguments.values.inputs import Inputs, ListOfValues, Literal, Tensor
from tests.builders.suites import table

MakeForward = Callable[..., Forward]


def text(arguments: str, forward: str, init: str = "pass") -> str:
    body, lines = "\n        ".join(init.split("\n")), "\n        ".join(forward.split("\n"))
    return f"""
class A(nn.Module):
    def __init__(self):
        super().__init__()
        {body}

    def forward(self, {arguments}):
        {lines}
"""


def found_shapes(search: Forward) -> dict[str, Any]:
    """The shapes of the first inputs that work, by argument; the expression of what is no tensor."""
    called = next(search.search(), None)
    assert called is not None, search.best_failure
    args, kwargs = evaluate(called, search.names)
    named = [*((f"*{place}", value) for place, value in enumerate(args)), *kwargs.items()]
    return {name: tuple(value.shape) if isinstance(value, torch.Tensor) else value for name, value in named}


@table(__file__, "forwarding.md", "Inputs that work", globals())
def test_inputs_that_work(forward: MakeForward, block: str, expected: dict[str, Any]) -> None:
    assert found_shapes(forward(block)) == expected


def test_a_list_of_dicts(forward: MakeForward) -> None:
    """As many labels as rows: the block asks for it by a count of elements."""
    lines = """parts = [part["words"] for part in parts]
if labels.numel() != len(parts[0]): raise ValueError("other labels")
return (parts[0] * parts[1]).sum(1) - labels"""
    shapes = found_shapes(forward(text("parts: 'list[dict[str, torch.Tensor]]', labels", lines)))
    assert [len(part["words"]) for part in shapes["parts"]] == [2, 2]
    assert shapes["labels"] == (2,)


def test_values_that_are_never_negative(forward: MakeForward) -> None:
    line = "assert min(x.min(), y.min()) >= 0 and x.numel() > 99, 'values must be >=0'\nreturn x * y"
    assert found_shapes(forward(text("x, y", line))).keys() == {"x", "y"}


def test_channels_that_a_large_module_expects(forward: MakeForward) -> None:
    init = "self.first = nn.Conv3d(5, 64, 3, padding=1)\nself.second = nn.Conv3d(64, 300, 3, padding=1)"
    search = forward(text("x", "return self.second(self.first(x.transpose(1, 2)))", init))
    assert found_shapes(search), "more than 400,000 parameters: on meta tensors no message says that it is 5"


def test_a_search_ends_once_it_gets_no_further(forward: MakeForward) -> None:
    def count(patience: int, lines: str) -> int:
        search = forward(text("x", lines))
        search.patience = patience
        assert next(search.search(), None) is None
        return TimeBudget().forwards - search.budget.forwards

    assert count(3, "raise ValueError(x.shape)") < count(9, "raise ValueError(x.shape)") <= 10
    steps = "assert x.dim() > 3\nassert x.shape[1] == 7\nraise ValueError(x.shape)"
    assert count(3, steps) > count(3, "raise ValueError(x.shape)"), "it continues as long as it gets further"


def test_no_arguments(forward: MakeForward) -> None:
    assert found_shapes(forward("class A(nn.Module):\n    def forward(self):\n        return torch.ones(2)\n")) == {}


@pytest.mark.parametrize(
    ("body", "init"),
    [
        ("a, b = x\nreturn self.a(a) + b", "self.a = nn.Linear(7, 7)"),
        ("assert x.shape[-2:] == (28, 28)\nreturn self.a(x)", "self.a = nn.Conv2d(5, 8, 3)"),
        ("b, n, c = x.shape\nassert n == 49\nreturn self.a(x)", "self.a = nn.Linear(20, 4)"),
        ("n = x.ptr[1:] - x.ptr[:-1]\nreturn x.weight * x['energy'] / n + x.pos.sum()", "pass"),
        ("return self.b(self.a(x).flatten(1))", "self.a = nn.Conv2d(3, 4, 1)\nself.b = nn.Linear(4 * 32 * 32, 2)"),
    ],
    ids=["a pair", "an image's size", "a number of tokens", "a batch of graphs", "flattened maps"],
)
def test_inputs_that_take_several_steps(forward: MakeForward, body: str, init: str) -> None:
    search = forward(text("x", body, init))
    assert next(search.search(), None) is not None, search.best_failure


def test_a_model_that_computes_gradients_runs_with_them(forward: MakeForward) -> None:
    body = "x.requires_grad_(True)\nreturn torch.autograd.grad(self.a(x).sum(), x)[0]"
    assert found_shapes(forward(text("x", body, "self.a = nn.Linear(6, 6)")))


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        ("x, physics", "return self.a(physics.A_adjoint(x)) - physics.A(x)"),
        ("x, physics=None, *, model", "return model(self.a(x), physics)"),
    ],
)
def test_operators_and_models_are_functions(forward: MakeForward, arguments: str, body: str) -> None:
    search = forward(text(arguments, body, "self.a = nn.Conv2d(3, 3, 1)"))
    called = next(search.search(), None)
    assert called is not None, search.best_failure
    assert "lambda x, *_, **__: x" in dict(called.kwargs)[arguments.split()[-1]]


def test_an_argument_that_a_class_of_the_corpus_annotates_is_an_instance_of_it(forward: MakeForward) -> None:
    code = "class Operator:\n    def __init__(self, scale=2.0):\n        self.scale = scale\n"
    companion = {"parameter": "physics", "name": "Operator", "code": code, "wants_class": False}
    block = text("x, physics: 'Operator'", "return self.a(x) * physics.scale", "self.a = nn.Linear(6, 6)")
    assert dict(next(forward(block, companions=[companion]).search()).kwargs)["physics"] == "Operator()"


# --- what the corpus tells --------------------------------------------------------------------------------------------


def test_examples_come_first(forward: MakeForward) -> None:
    examples = [
        {"args": ["torch.randn(1, 5)"], "kwargs": [], "way": "example"},
        {"args": ["torch.randn(1, 3, 10, 10)"], "kwargs": [("times", "2")], "way": "example"},
    ]
    search = forward(text("x, times=1", "return self.a(x) * times", "self.a = nn.Conv2d(3, 8, 3)"), forward=examples)
    called = next(search.search())
    assert called == ForwardCall((), (("x", "torch.randn(1, 3, 10, 10)"), ("times", "2")), guessed=False)
    assert search.best_failure is not None  # the example that did not work


def test_the_call_that_was_recorded_of_the_same_module_comes_first(forward: MakeForward) -> None:
    def recorded(side: int, dim: int) -> dict[str, Any]:
        init = {"args": [], "kwargs": {"dim": str(dim)}}
        return {"args": [f"torch.randn((2, {side}))"], "kwargs": [], "way": "recorded", "init": init}

    text = """
        class A(nn.Module):
            def __init__(self, dim):
                super().__init__()
            def forward(self, x):
                return x * 2
    """
    search = forward(text, Arguments(kwargs=(("dim", "24"),)), forward=[recorded(5, 8), recorded(7, 24)])
    assert next(search.search()).kwargs == (("x", "torch.randn((2, 7))"),)


def test_an_example_that_cannot_be_evaluated(forward: MakeForward) -> None:
    examples = [{"args": ["absent(3)"], "kwargs": [], "way": "example"}]
    search = forward(text("x", "return x"), forward=examples)
    assert next(search.search()).guessed
    assert search.best_failure is not None
    assert search.best_failure[0].message == "NameError: name 'absent' is not defined"


def test_documented_shapes(forward: MakeForward) -> None:
    block = text("x, y", "return x.sum() + y.sum()")
    assert found_shapes(forward(block))["x"] == (2, 32, 16, 16)
    assert found_shapes(forward(block, inputs=[("x", ("b", "n", "c"))]))["x"] == (2, 16, 32)


# --- one call ---------------------------------------------------------------------------------------------------------


NAMES = BlockNamespace({"torch": torch})


class Module(nn.Module):
    def __init__(self, action: Callable[..., Any]) -> None:
        super().__init__()
        self.action = action

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.action(*args, **kwargs)


@pytest.mark.parametrize("output", [None, 3, "text", [], {}, ((),)])
def test_an_output_without_a_tensor_is_no_success(output: object) -> None:
    with pytest.raises(AttemptError) as caught:
        run(Module(lambda: output), ForwardCall((), ()), NAMES)
    assert caught.value.message.startswith("ValueError: no_output")
    assert caught.value.progress[0] > 1000  # it came as far as can be


def test_forward_runs_without_gradients_and_seeded() -> None:
    called = ForwardCall(("torch.randn(3)",), ())
    module = Module(lambda x: x + torch.rand(3) + (1 if torch.is_grad_enabled() else 0))
    assert torch.equal(run(module, called, NAMES), run(module, called, NAMES))
    assert float(run(module, called, NAMES).max()) < 5


@pytest.mark.parametrize(
    ("inputs", "args", "kwargs"),
    [
        ((("x", Tensor((2,))),), (), {"x": "torch.randn((2,))"}),
        (
            (("*x", ListOfValues((Tensor((2,)), Literal("1")))), ("y", Literal("2"))),
            ("torch.randn((2,))", "1"),
            {"y": "2"},
        ),
        ((("*x", Tensor((2,))),), ("torch.randn((2,))",), {}),
        ((), (), {}),
    ],
)
def test_as_call(inputs: Inputs, args: tuple[str, ...], kwargs: dict[str, str]) -> None:
    called = as_call(inputs)
    assert (called.args, dict(called.kwargs), called.guessed) == (args, kwargs, True)
    assert called.as_json() == {"args": list(args), "kwargs": kwargs}


def test_told_call() -> None:
    assert call_text(ForwardCall(("1",), (("y", "2"),))) == "1, y=2"
    assert call_text(ForwardCall((), ())) == "no arguments"
    assert len(call_text(ForwardCall(("1" * 999,), ()))) == 200


# --- meta tensors -----------------------------------------------------------------------------------------------------

LARGE = "self.a = nn.Linear(1024, 1024)"


def test_a_large_module_is_searched_on_meta(forward: MakeForward) -> None:
    search = forward(text("x", "return self.a(x)", LARGE))
    assert search.built.on_meta
    assert next(search.search(), None) is not None
    assert search.built.on_meta


def test_what_meta_tensors_cannot_do_is_done_for_real(forward: MakeForward) -> None:
    search = forward(text("x", "return self.a(x) * (1 if x.sum() > 0 else 2)", LARGE))
    assert search.built.on_meta
    assert next(search.search(), None) is not None, search.best_failure
    assert not search.built.on_meta


def test_a_named_tuple_goes_to_meta(forward: MakeForward) -> None:
    code = "from typing import NamedTuple\nclass Pair(NamedTuple):\n    x: object\n    y: object\n"
    examples = [{"args": ["Pair(torch.randn(2, 1024), torch.randn(2, 1024))"], "kwargs": [], "way": "example"}]
    item = {"parameter": "", "name": "Pair", "qualname": "lib.Pair", "code": code, "wants_class": False}  # fmt: skip
    search = forward(text("pair", "return self.a(pair.x)", LARGE), forward=examples, companions=[item])
    assert search.built.on_meta
    assert next(search.search()).kwargs == (("pair", examples[0]["args"][0]),)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_the_mistake_that_came_furthest_names_the_call(forward: MakeForward) -> None:
    search = forward(text("x", "y = self.a(x)\nraise ValueError('never')", "self.a = nn.Conv2d(3, 8, 3)"))
    assert next(search.search(), None) is None
    assert search.best_failure is not None
    mistake, called = search.best_failure
    assert mistake.message == "ValueError: never"
    assert called == "x=torch.randn((2, 3, 16, 16))"
    assert mistake.where().endswith("raise ValueError('never'))")


def test_the_budget_ends_the_search(forward: MakeForward) -> None:
    search = forward(text("x", "raise ValueError('never')"))
    search.budget.forwards = 3
    assert next(search.search(), None) is None
    assert search.budget.forwards == 0
    search = forward(text("x", "raise ValueError('never')"))
    search.budget.seconds = -1.0
    assert next(search.search(), None) is None
    assert search.budget.forwards == 320


def test_no_inputs_are_tried_twice_nor_large_ones(forward: MakeForward, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[ForwardCall] = []

    def refuse(self: Forward, called: ForwardCall) -> AttemptError:
        tried.append(called)
        return AttemptError(RuntimeError("mat1 and mat2 shapes cannot be multiplied (32x16 and 8000x4)"))

    monkeypatch.setattr(Forward, "_try", refuse)
    assert next(forward(text("x", "return x")).search(), None) is None
    assert len(tried) == len({called.kwargs for called in tried}) <= forwarding._MAX_TRIES
    assert len(tried) > 20
    sizes = [[int(size) for size in re.findall(r"\d+", text)] for called in tried for _, text in called.kwargs]
    assert all(math.prod(shape) <= forwarding._MAX_AT_START for shape in sizes)


def test_positional_only_arguments(forward: MakeForward) -> None:
    """torch's own containers name their input `input`; a `/` forbids to give it by name."""
    search = forward(text("x, /", "return x * 2"))
    assert next(search.search(), None) is not None, search.best_failure


def test_only_leading_inputs_go_by_position() -> None:
    parameters = inspect.signature(lambda a, b, c: None).parameters
    values = {name: Literal(name) for name in "abc"}

    def call(*names: str) -> tuple[tuple[str, ...], list[str]]:
        called = as_call(tuple((name, values[name]) for name in names), parameters, by_position=True)
        return called.args, [name for name, _ in called.kwargs]

    assert call("a", "b", "c") == (("a", "b", "c"), [])
    assert call("a", "c") == (("a",), ["c"])
    assert call("c", "b") == ((), ["c", "b"])
