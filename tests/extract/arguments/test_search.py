"""The search for calls of a class: constructor and forward together."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from extract.arguments.constructing import Arguments, confirm, instances
from extract.arguments.forwarding import ForwardCall, Search, call_text, evaluate, run
from extract.arguments.trials import AttemptError, BlockNamespace, TimeBudget
from tests.builders.class_text import class_text
from tests.builders.suites import table

MakeSearch = Callable[..., Search]


def text(arguments: str, forward: str, init: str = "pass", signature: str = "", more: str = "") -> str:
    return f"\n{more}{class_text(forward, init, arguments, signature)}"


def made(signature: str, init: str = "pass", more: str = "") -> str:
    return text("x", "return x * 1", init, signature, more)


def first(search: Search) -> tuple[Arguments, ForwardCall]:
    found = next(search.calls(), None)
    assert found is not None, search.best_failure
    return found[0].arguments, found[1]


def init(search: Search) -> dict[str, str]:
    return dict(first(search)[0].kwargs)


def values(search: Search) -> dict[str, Any]:
    """The first inputs that work, by argument: the shapes of tensors."""
    args, kwargs = evaluate(first(search)[1], search.constructor.names)
    named = [*((f"*{place}", value) for place, value in enumerate(args)), *kwargs.items()]
    return {name: tuple(value.shape) if isinstance(value, torch.Tensor) else value for name, value in named}


def call(args: tuple[str, ...], way: str = "call", **kwargs: str) -> dict[str, Any]:
    return {"args": args, "kwargs": tuple(kwargs.items()), "way": way}


@table(__file__, "search.md", "Arguments by name", globals())
def test_arguments_by_name(search: MakeSearch, signature: str, body: str, kwargs: dict[str, str]) -> None:
    arguments, _ = first(search(made(signature, body), construct=True))
    assert dict(arguments.kwargs) == kwargs
    assert arguments.args == (("32",) if "/" in signature else ())


@pytest.mark.parametrize(
    ("base", "body"),
    [
        ("nn.Conv2d", "super().__init__(*args, **kwargs)"),
        ("Base", "super().__init__(**kwargs)"),
        ("Base", "super().__init__(width=4, **kwargs)"),
    ],
)
def test_arguments_that_are_passed_on(search: MakeSearch, base: str, body: str) -> None:
    """`*args, **kwargs`: what the constructor of a base says that it lacks is given by name."""
    above = """
class Base(nn.Module):
    def __init__(self, dim, *, num_heads, width=2):
        super().__init__()
        self.a = nn.MultiheadAttention(dim, num_heads)

"""
    block = f"{above}class A({base}):\n    def __init__(self, *args, **kwargs):\n        {body}\n"
    wanted = {"dim", "num_heads"} if base == "Base" else {"in_channels", "out_channels", "kernel_size"}
    assert set(init(search(block, construct=True))) == wanted


def test_starts_are_tried_in_order_of_what_they_prove(search: MakeSearch) -> None:
    """Recorded, default, recorded but never called, stated, guessed, with free names filled, values of the file."""
    hints = {
        "values": [("dim", "96")],
        "init": [
            *(call(("11",), "guessed above"), call(("7",), "recorded"), call(("9",), "recorded")),
            *(call(("width * 2",)), call((), dim="size"), call(("dim",))),
        ],
        "forward": [{"args": [], "kwargs": [], "init": {"args": ["9"], "kwargs": {}}}],
    }
    starts = [start for _, start in search(made("dim", "self.dim = dim"), **hints).constructor.starts()]
    assert starts == [
        *(Arguments((text,)) for text in ("9", "7", "96", "11", "32 * 2")),
        *(Arguments(kwargs=(("dim", text),)) for text in ("96", "96")),
    ]
    block = made("embed_dim=768, act='x'", "self.dim = embed_dim")
    starts = [start for _, start in search(block, init=[call((), embed_dim="act")]).constructor.starts()]
    assert starts == [Arguments(), Arguments(kwargs=(("embed_dim", "32"),))]


def test_edits_of_a_constructor(search: MakeSearch) -> None:
    """Of a recorded one that failed, by an argument that an error names, by a class of the file, where no inputs help."""
    block = made("dim, mult=None", "self.a = nn.Linear(dim, int(dim * mult))")
    assert init(search(block, init=[call((), "recorded", dim="32")]))["mult"] == "32"
    found = init(search(made("dim, groups=5", "self.a = nn.Conv2d(dim, dim, 1, groups=groups)")))
    assert (found["dim"], 32 % int(found["groups"])) == ("32", 0)
    basic = "class Basic(nn.Module):\n    def __init__(self, width):\n        super().__init__()\n"
    block = made("block_type, width", "self.a = block_type(width)\nassert issubclass(block_type, Basic)", basic)
    assert init(search(block))["block_type"] == "Basic"
    body = "if self.window != 4: raise ValueError('window_size')\nreturn x * 2"
    assert init(search(text("x", body, "self.window = window_size", "window_size=5"))) == {"window_size": "4"}


CONFIG = """
class SmallConfig:
    def __init__(self, hidden_size=768, layers=12):
        self.hidden_size, self.layers = hidden_size, layers
"""


@table(__file__, "search.md", "A class that a parameter accepts", globals())
def test_a_class_that_a_parameter_accepts(
    search: MakeSearch, signature: str, body: str, more: str, name: str, expected: str
) -> None:
    """One that fails is left out, or replaced where it is a layer."""
    assert init(search(made(signature, body, more), accepted=[(signature, name)], construct=True)) == {
        signature: expected
    }


@table(__file__, "search.md", "Instances", globals())
def test_instances(name: str, code: str, expected: list[str]) -> None:
    names: dict[str, Any] = {}
    exec(code, names)
    assert instances(name, names[name]) == expected
    for text in () if "raise" in code else expected:
        eval(text, names)


def test_construction_is_the_same_each_time(search: MakeSearch) -> None:
    block = made("dim", "self.a = nn.Linear(dim, dim)\nself.b = nn.Parameter(torch.empty(dim))")
    constructor = search(block).constructor
    (one, unset), (two, _) = (confirm(constructor, Arguments(kwargs=(("dim", "5"),))) for _ in range(2))
    assert unset == ["b"]
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    assert all(bool(torch.isfinite(p).all()) for p in one.parameters())
    with pytest.raises(AttemptError):
        confirm(constructor, Arguments())


@table(__file__, "search.md", "Inputs that work", globals())
def test_inputs_that_work(search: MakeSearch, block: str, expected: dict[str, Any]) -> None:
    assert values(search(block)) == expected


@table(__file__, "search.md", "Edits of inputs", globals())
def test_edits_of_inputs(search: MakeSearch, block: str) -> None:
    found = search(block)
    first(found)
    assert len(found.way) > 2, "the first inputs work"


def test_recorded_calls_come_first_those_of_the_same_module_before_others(search: MakeSearch) -> None:
    def recorded(side: int, dim: int) -> dict[str, Any]:
        own = {"args": [], "kwargs": {"dim": str(dim)}}
        return {"args": [f"torch.randn((2, {side}))"], "kwargs": [], "way": "recorded", "init": own}

    block = text("x", "return x * 2", signature="dim")
    found = search(block, only=Arguments(kwargs=(("dim", "24"),)))
    found.hints = {"forward": [recorded(5, 8), recorded(7, 24), {"args": ["absent(3)"], "kwargs": []}]}
    assert [called.kwargs for (_, called), _ in zip(found.calls(), range(2), strict=False)] == [
        (("x", "torch.randn((2, 7))"),),
        (("x", "torch.randn((2, 5))"),),
    ]


@pytest.mark.parametrize(
    ("forward", "init", "on_meta"),
    [
        ("return self.a(x)", "self.a = nn.Linear(1024, 1024)", True),
        ("return self.a(x) * (1 if x.sum() > 0 else 2)", "self.a = nn.Linear(1024, 1024)", False),
        ("return self.a(x)", "self.a = nn.Linear(8, 8)", False),
        ("return x * self.a", "self.a = nn.Parameter(torch.zeros(int(torch.ones(()).item())))", False),
    ],
)
def test_a_large_module_is_searched_on_meta_unless_values_are_read(
    search: MakeSearch, forward: str, init: str, on_meta: bool
) -> None:
    found = search(text("x", forward, init))
    arguments, _ = first(found)
    assert found.constructor.make(arguments).on_meta == ("1024" in init)
    assert found.best is not None
    built, _ = next(search(text("x", forward, init)).calls())
    assert built.on_meta == on_meta


def test_channels_that_a_large_module_expects(search: MakeSearch) -> None:
    layers = "self.first = nn.Conv3d(5, 64, 3, padding=1)\nself.second = nn.Conv3d(64, 300, 3, padding=1)"
    found = search(text("x", "return self.second(self.first(x.transpose(1, 2)))", layers))
    assert values(found), "more than 400,000 parameters: on meta tensors no message says that it is 5"


@table(__file__, "search.md", "The failure that came furthest is kept", globals())
def test_the_failure_that_came_furthest_is_kept(search: MakeSearch, block: str, message: str, shown: str) -> None:
    found = search(block)
    assert list(found.calls()) == []
    assert found.best_failure is not None
    assert found.best_failure[0].message == message
    assert found.best_failure[1] == shown


def test_no_call_is_tried_twice(search: MakeSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    failure = AttemptError(RuntimeError("mat1 and mat2 shapes cannot be multiplied (32x16 and 8000x4)"))

    def fail(_: Search, built: Any, called: ForwardCall) -> None:
        tried.append((built.arguments, called))
        raise failure

    monkeypatch.setattr(Search, "_run", fail)
    assert list(search(made("alpha, beta"), init=[call(("1", "2")), call(("1", "2"))]).calls()) == []
    assert 20 < len(tried) == len(set(tried))


def test_the_search_ends_with_its_budget_or_once_it_gets_no_further(search: MakeSearch) -> None:
    def count(lines: str, **limits: Any) -> int:
        found = search(text("x", lines))
        for name, value in limits.items():
            setattr(found.constructor.budget, name, value)
        assert list(found.calls()) == []
        return TimeBudget().forwards - found.constructor.budget.forwards

    never = "raise ValueError(x.shape)"
    assert count(never, seconds=-1.0) == 0
    assert 10 < count(never) < 100
    found = search(text("x", never))
    found.constructor.budget.forwards = 3
    assert list(found.calls()) == []
    assert found.constructor.budget.forwards == 0


NAMES = BlockNamespace({"torch": torch})


class Module(nn.Module):
    def __init__(self, action: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = action


def test_forward_runs_without_gradients_and_seeded() -> None:
    called = ForwardCall(("torch.randn(3)",), ())
    module = Module(lambda x: x + torch.rand(3) + (1 if torch.is_grad_enabled() else 0))
    assert torch.equal(run(module, called, NAMES), run(module, called, NAMES))
    assert float(run(module, called, NAMES).max()) < 5


def test_told_call() -> None:
    assert call_text(ForwardCall(("1",), (("y", "2"),))) == "1, y=2"
    assert call_text(ForwardCall((), ())) == "no arguments"
    assert len(call_text(ForwardCall(("1" * 999,), ()))) == 200
