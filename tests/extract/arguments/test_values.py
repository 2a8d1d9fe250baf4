"""Values told from names and annotations, and configurations made small."""

import dataclasses
import importlib
import inspect
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from torch import nn

from extract.arguments.settings import configuration_expressions
from extract.arguments.values import names as values
from extract.arguments.values.compared import list_fitting, read_compared
from extract.arguments.values.names import candidates, shrunk, shrunk_arguments
from extract.standins.frameworks import NotInstalled
from tests.builders.suites import table

#: A file that compares its parameters.
COMPARES = """
SCALES = {"small": 1, "large": 2, 3: 4}
class A:
    sizes = NotImplemented
    def __init__(self, mode, scale, size):
        self.mode = mode
        assert mode.lower() in ("mean", "max")
        self.scale = SCALES[scale]
        self.size = self.sizes[size]
    def forward(self, x):
        return x if self.mode == "none" else x.mean()
class B(A):
    sizes = {"wide": 1}
"""
EMPTY = inspect.Parameter.empty


@pytest.mark.parametrize(
    ("name", "annotation", "first"),
    [
        ("in_channels", EMPTY, "32"),
        ("embed_dim", int, "32"),
        ("num_heads", EMPTY, "4"),
        ("n_head", EMPTY, "4"),
        ("patch_size", EMPTY, "4"),
        ("window_size", EMPTY, "4"),
        ("reduction_ratio", EMPTY, "4"),
        ("kernel_size", EMPTY, "3"),
        ("stride", EMPTY, "1"),
        ("num_classes", EMPTY, "10"),
        ("depths", EMPTY, "2"),
        ("attn_drop_prob", EMPTY, "0.1"),
        ("drop_path", float, "0.1"),
        ("depths", list[int], "[2, 2, 2, 2]"),
        ("depths", "Tuple[int, ...]", "[2, 2, 2, 2]"),
        ("zzz", bool, "False"),
        ("zzz", float, "0.5"),
        ("zzz", str, "'mean'"),
        ("zzz", "int", "32"),
        ("zzz", Optional[int], "32"),  # noqa: UP045 - as files of the corpus spell it
        ("zzz", type[nn.Module], "nn.Identity"),
        ("zzz", nn.Module, "nn.Identity()"),
        ("zzz", tuple[int, int], "[32, 32]"),
        ("zzz", EMPTY, "32"),
    ],
)
def test_the_likeliest_value(name: str, annotation: object, first: str) -> None:
    assert candidates(name, annotation)[0] == first


KNOWN = ("in_channels", "num_heads", "kernel_size", "config", "norm_layer", "act", "block", "anchors", "zzz", "mode",
         "depths", "img_size", "dropout", "head", "pool", "loss_weight", "rope_scaling", "init_values", "backbone")  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_candidates_are_distinct_and_can_be_evaluated(name: str) -> None:
    found = candidates(name)
    assert found
    assert len(set(found)) == len(found)
    for text in found:
        if text.startswith("@"):
            assert text == "@block"
        else:
            eval(text, {"torch": torch, "nn": nn, "F": nn.functional, "types": types})


def test_every_rule_has_values() -> None:
    for rule in (*values.NAMES, *values.ANNOTATIONS):
        assert re.compile(rule.pattern)
        assert all(rule.values.split("|"))


@table(__file__, "values.md", "Shrunk", globals())
def test_shrunk(name: str, default: object, small: str | None) -> None:
    assert shrunk(name, default) == small


def test_shrunk_arguments() -> None:
    def build(dim, embed_dim=768, depths=(2, 2, 18, 2), act="relu", *, num_heads=12):  # type: ignore[no-untyped-def]
        return None

    found = shrunk_arguments({name: p.default for name, p in inspect.signature(build).parameters.items()})
    assert found == {"embed_dim": "32", "depths": "(2, 2, 2, 2)", "num_heads": "4"}


class PlainConfig:
    def __init__(self, hidden_size: int = 768, num_hidden_layers: int = 12, eps: float = 1e-6) -> None:
        self.hidden_size, self.num_hidden_layers, self.eps = hidden_size, num_hidden_layers, eps


class OpenConfig:
    """Keeps what it is given, as those of pretrained models do."""

    def __init__(self, **kwargs: Any) -> None:
        self.embed_dim = kwargs.pop("embed_dim", 1024)
        self.num_hidden_layers = kwargs.pop("num_hidden_layers", 24)
        self._private = 4096


class NestedConfig:
    def __init__(self, text_config: object = None, num_labels: int = 1000) -> None:
        self.text_config = text_config or {"hidden_size": 4096, "num_layers": 40}
        self.num_labels = num_labels


@dataclasses.dataclass
class NeedyConfig:
    hidden_size: int
    num_layers: int = 24


class BrokenConfig:
    def __init__(self, vocab_size: int = 50000) -> None:
        raise RuntimeError("not here")


@pytest.mark.parametrize(
    ("cls", "first", "last"),
    [
        (PlainConfig, "C(hidden_size=32, num_hidden_layers=2)", "C()"),
        (OpenConfig, "C(embed_dim=32, num_hidden_layers=2)", "C()"),
        (NestedConfig, "C(num_labels=10, text_config={'hidden_size': 32, 'num_layers': 2})", "C()"),
        (NeedyConfig, "C(hidden_size=32, num_layers=2)", "C(hidden_size=32)"),
        (BrokenConfig, "C(vocab_size=128)", "C()"),
    ],
)
def test_configurations(cls: Callable[..., object], first: str, last: str) -> None:
    found = configuration_expressions("C", cls)  # type: ignore[arg-type]
    assert found[0] == first
    assert found[-1] == last
    assert len(set(found)) == len(found)
    if cls is not BrokenConfig:
        for text in found:
            eval(text, {"C": cls})


def test_what_a_parameter_is_compared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compares_things.py").write_text(COMPARES)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("compares_things")
    read = read_compared("compares_things")
    assert read == {"mode": ("'mean'", "'max'", "'none'"), "scale": ("'large'", "'small'"), "size": ("'wide'",)}
    assert list_fitting(read["mode"], "int") == ()
    assert list_fitting(read["mode"], "Optional[str]") == list_fitting(read["mode"], "") == read["mode"]
    assert read_compared("no_such_module") == {}


def test_what_refuses_to_be_looked_at_has_no_parameters() -> None:
    """The value of an import that is taken as not installed raises whatever is read from it."""
    assert values.read_parameters(NotInstalled("torchao")) == {}
