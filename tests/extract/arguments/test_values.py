"""Values: as expressions, the first inputs of forward, those of names and annotations, and small ones for large defaults."""

import copy
import importlib
import inspect
import types
from collections import OrderedDict, namedtuple  # noqa: F401 (the page names it)
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from extract.arguments.messages import RECORD
from extract.arguments.values import (
    ANNOTATIONS,
    BLOCK,
    FLOAT,
    INDEX,
    MASK,
    NAMES,
    POSITIVE,
    ListOfValues,
    Literal,  # noqa: F401 - the page names it
    Tensor,
    Value,
    candidates,
    change_nested,
    change_tensors,
    flatten,
    list_compared,
    list_first_inputs,
    read_compared,
    read_parameters,
    shrunk,
    tensors_in,
)
from extract.standins.frameworks import NotInstalled
from tests.builders.suites import table

DTYPES = {FLOAT: torch.float32, INDEX: torch.int64, MASK: torch.bool, POSITIVE: torch.float32}
SHAPES = st.lists(st.integers(0, 5), max_size=5).map(tuple)
TENSORS = st.builds(Tensor, SHAPES, st.sampled_from(sorted(DTYPES)), st.integers(1, 9))
VALUES = st.recursive(
    TENSORS,
    lambda inner: st.builds(ListOfValues, st.lists(inner, max_size=3).map(tuple), st.booleans()),
    max_leaves=6,
)


def evaluated(value: Value) -> Any:
    return eval(value.expression(), {"torch": torch, "types": types})


@table(__file__, "values.md", "Expressions", globals())
def test_expressions(value: Value, text: str) -> None:
    assert value.expression() == text


@given(TENSORS)
def test_an_expression_makes_the_tensor(described: Tensor) -> None:
    made = evaluated(described)
    assert (tuple(made.shape), made.dtype) == (described.shape, DTYPES[described.kind])
    least, most = (int(made.min()), int(made.max())) if made.numel() else (0, 0)
    assert described.kind != INDEX or 0 <= least <= most < described.below
    assert described.kind != POSITIVE or (least, most) == (0, 0)
    assert described.kind != MASK or bool(made.all())


@given(VALUES)
def test_containers_hold_their_tensors_in_order_and_a_change_reaches_each(described: Value) -> None:
    tensors = list(tensors_in(described))
    wanted = [(tensor.shape, DTYPES[tensor.kind]) for tensor in tensors]
    assert [(tuple(made.shape), made.dtype) for made in flatten(evaluated(described), depth=100)] == wanted
    changed = change_tensors(described, lambda tensor: tensor.with_shape((*tensor.shape, 1)))
    assert [(t.shape, t.kind) for t in tensors_in(changed)] == [((*t.shape, 1), t.kind) for t in tensors]
    assert change_tensors(described, lambda _: None) == described


ONE, TWO, THREE = torch.tensor(1), torch.tensor(2), torch.tensor(3)
Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    logits: torch.Tensor
    more: object = None


@table(__file__, "values.md", "Flatten", globals())
def test_flatten(value: object, found: list[int]) -> None:
    assert [int(tensor) for tensor in flatten(value)] == found
    within_itself: list[Any] = [ONE]
    within_itself.append(within_itself)
    assert {int(tensor) for tensor in flatten(within_itself)} == {1}


def test_what_is_read_by_key_and_as_attribute() -> None:
    """Its text alone makes it; copies and changes leave it as it is, and what it lacks is an attribute that it lacks."""
    made = eval(f"{RECORD}(a=torch.randn((2,)), b=3, nested={{'d': 5}})", {"torch": torch})
    for record in (made, copy.deepcopy(made), change_nested(made, lambda tensor: tensor * 1)):
        assert record.a is record["a"]
        assert (record.b, record.nested.d, record["nested"].d, flatten(record)) == (3, 5, 5, [record.a])
        assert not hasattr(record, "c")
        record.c = 4
        assert record["c"] == 4


@table(__file__, "values.md", "First inputs", globals())
def test_first_inputs(layers: nn.Module, signature: str, expected: dict[str, Any]) -> None:
    space: dict[str, Any] = {}
    exec(f"def forward({signature}): pass", space)

    def compare(name: str, _: object) -> list[str]:
        return ["'norm'"] if name == "mode" else []

    listed = list(list_first_inputs(layers, inspect.signature(space["forward"]).parameters, compare))
    floats = {name: value.shape for name, value in listed[0] if isinstance(value, Tensor) and value.kind == FLOAT}
    first = {name: floats.get(name) or value.expression() for name, value in listed[0]}
    assert first == expected
    if "x" in first and len(first) == 1 and not isinstance(first["x"], str):
        assert len({dict(inputs)["x"] for inputs in listed}) >= 10  # layouts


EMPTY = inspect.Parameter.empty


@pytest.mark.parametrize(
    ("name", "annotation", "first"),
    [
        ("n_head", EMPTY, "4"),
        ("depths", EMPTY, "2"),
        ("depths", "Tuple[int, ...]", "[2, 2, 2, 2]"),
        ("drop_path", float, "0.1"),
        ("zzz", str, "'mean'"),
        ("zzz", Optional[int], "32"),  # noqa: UP045 - as files of the corpus spell it
        ("zzz", type[nn.Module], "nn.Identity"),
        ("zzz", EMPTY, "32"),
    ],
)
def test_the_likeliest_value(name: str, annotation: object, first: str) -> None:
    assert candidates(name, annotation)[0] == first


def test_values_are_distinct_and_can_be_evaluated(load: Any, names: Any) -> None:
    load("class A(nn.Module): pass")
    known = names()
    for rule in (*NAMES, *ANNOTATIONS):
        assert all(text == BLOCK or known.value(text) is not Ellipsis for text in rule.values.split("|"))
    for name in ("in_channels", "num_heads", "kernel_size", "norm_layer", "act", "block", "zzz", "depths", "dropout"):
        found = candidates(name)
        assert len(set(found)) == len(found) > 3


@table(__file__, "values.md", "Shrunk", globals())
def test_shrunk(name: str, default: object, small: str | None) -> None:
    assert shrunk(name, default) == small


def test_what_a_parameter_is_compared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compares_things.py").write_text("""
SCALES = {"small": 1, "large": 2}
class tables:
    norms = {"batch": 1}
def build(mode, scale, norm):
    assert mode.lower() in ("mean", "max")
    return SCALES[scale] + tables.norms.get(norm) + mode["absent"].get()
class A:
    def forward(self, x):
        return x if self.mode == "none" else x.mean()
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("compares_things")
    read = read_compared("compares_things")
    assert read == {"mode": ("'mean'", "'max'", "'none'"), "scale": ("'large'", "'small'"), "norm": ("'batch'",)}
    assert list_compared("compares_things", "mode", "int") == ()
    for annotation in ("Optional[str]", EMPTY):
        assert list_compared("compares_things", "mode", annotation) == read["mode"]
    assert read_compared("no_such_module") == {}


def test_parameters_of_what_hides_them() -> None:
    """Of a class that takes anything, or whose metaclass does, and of an import that is taken as not installed."""

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    class Own(metaclass=Meta):
        def __init__(self, dim: int) -> None: ...

    class Passes(Own):
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    assert [list(read_parameters(cls)) for cls in (Own, Passes)] == [["dim"], ["dim"]]
    assert read_parameters(NotInstalled("torchao")) == {}
