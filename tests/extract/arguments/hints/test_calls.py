"""Calls of a class in the corpus: which arguments are found."""

import pytest

BLOCK = """
from functools import partial
import torch.nn as nn
class Mlp(nn.Module):
    def __init__(self, dim, hidden=None, act=nn.GELU):
        super().__init__()
    def forward(self, x):
        return x
"""

CASES = {
    "literals": ("m = Mlp(64, hidden=128)", ("64",), {"hidden": "128"}),
    "a default is left out": ("m = Mlp(64, None, nn.GELU)", ("64",), {}),
    "a layer": ("m = Mlp(8, act=nn.ReLU)", ("8",), {"act": "nn.ReLU"}),
    "a layer that is imported": ("from torch.nn import ReLU\nm = Mlp(8, act=ReLU)", ("8",), {"act": "nn.ReLU"}),
    "partial": ("m = Mlp(8, act=partial(nn.LeakyReLU, 0.1))", ("8",), {"act": "functools.partial(nn.LeakyReLU, 0.1)"}),
    "a constant of the module": ("WIDTH = 32\nm = Mlp(WIDTH * 2)", ("32 * 2",), {}),
    "a default of the function around": (
        "def f(dim=48, ratio=4.0):\n    return Mlp(dim, int(dim * ratio))",
        ("48",),
        {"hidden": "int(48 * 4.0)"},
    ),
    "a local name": ("def f():\n    d = 7\n    e = [d, d + 1]\n    return Mlp(e[1])", ("[7, 7 + 1][1]",), {}),
    "a name that is bound twice stays": ("def f(d=1):\n    d = 2\n    return Mlp(d)", ("d",), {}),
    "a parameter without a default stays": ("def f(d):\n    return Mlp(d)\nx = f(24)", ("d",), {}),
    "an item of a parameter": ("def f(dims):\n    return Mlp(dims[2])", ("dim",), {}),
    "an attribute of a configuration": ("def f(config):\n    return Mlp(config.width)", ("width",), {}),
    "an attribute of self": (
        "class B(nn.Module):\n    def __init__(self, d=5):\n        self.d = d\n        self.m = Mlp(self.d)",
        ("5",),
        {},
    ),
    "a class in a variable": ("def f(block=Mlp):\n    return block(6)", ("6",), {}),
    "a name of a loop stays": ("for d in (20, 40):\n    m = Mlp(d)", ("d",), {}),
    "one unknown argument that has a default": ("m = Mlp(64, act=choose())", ("64",), {}),
}


@pytest.mark.parametrize(("code", "args", "kwargs"), CASES.values(), ids=CASES)
def test_a_call_is_found(hints_for, code: str, args: tuple[str, ...], kwargs: dict[str, str]) -> None:
    first = hints_for("Mlp", a=f"{BLOCK}\n{code}\n").init[0]
    assert (first.args, dict(first.kwargs)) == (args, kwargs)


def test_small_calls_come_before_large_ones_and_those_with_free_names_last(hints_for) -> None:
    code = "def f(d):\n    Mlp(d, hidden=7)\n    Mlp(900)\n    Mlp(30)\n    Mlp(choose(), hidden=3)\n"
    assert [call.args for call in hints_for("Mlp", a=f"{BLOCK}\n{code}").init] == [("30",), ("900",), ("d",)]


def test_a_class_of_the_same_name_is_another(hints_for) -> None:
    other = "from torch import nn\nclass Mlp(nn.Linear):\n    pass\nm = Mlp(1, 1)\n"
    assert hints_for("Only", a=BLOCK.replace("Mlp", "Only"), b=other).init == ()
    calls = hints_for("Mlp2", a=BLOCK.replace("Mlp", "Mlp2"), b="from p.a import Mlp2 as M\nm = M(11)\n").init
    assert [call.args for call in calls] == [("11",)]


def test_arguments_that_do_not_fit_are_no_hint(hints_for) -> None:
    assert hints_for("Mlp", a=f"{BLOCK}\nm = Mlp(1, 2, 3, 4)\n").init == ()


def test_what_is_large_to_compute_is_left_out(hints_for) -> None:
    code = "m = Mlp([1] * 100_000_000)\nn = Mlp(9 ** 9 ** 9)\no = Mlp(3)\nd = d + 1\np = Mlp(d)"
    assert [call.args for call in hints_for("Mlp", a=f"{BLOCK}\n{code}\n").init] == [("3",)]


def test_values_that_the_file_gives_to_the_name_of_a_required_parameter(hints_for) -> None:
    others = """
class Need(nn.Module):
    def __init__(self, dim, hidden, kind, depth=3):
        super().__init__()
    def forward(self, x):
        return x
class Other(nn.Module):
    def __init__(self, hidden=None, dim=96, kind=KIND, depth=5):
        super().__init__()
m = Mlp(8, hidden=24)
"""
    assert hints_for("Need", a=BLOCK + others).values == (("dim", "96"), ("hidden", "24"))
