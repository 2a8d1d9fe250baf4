"""Blocks written by tests, loaded as the sandbox loads them; and what the search keeps of the process is put back."""

import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from extract.arguments import search_guest as entry
from extract.arguments.constructing import Arguments, Constructor
from extract.arguments.forwarding import Forward, as_call, run
from extract.arguments.repairs import repairs
from extract.arguments.resizing import FailedCall
from extract.arguments.trials import AttemptError, BlockNamespace, TimeBudget
from extract.arguments.values.compared import read_compared
from extract.arguments.values.inputs import Inputs, read_layers

IMPORTS = """\
import torch
from torch import nn
from torch.nn import functional as F
"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The working folder is a scratch folder, and what blocks leave in the process goes with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    for name in ("block", "companion_0", "companion_1"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    torch.manual_seed(0)


@pytest.fixture
def load() -> Callable[..., type[nn.Module]]:
    """Loads a class, by default `A`, of a block's text; torch, nn and F are imported above it."""

    def loaded(text: str, name: str = "A") -> type[nn.Module]:
        linecache.clearcache()
        read_compared.cache_clear()
        cls, stopped = entry.define({"code": IMPORTS + textwrap.dedent(text), "name": name})
        assert cls is not None, stopped
        return cls

    return loaded


@pytest.fixture
def names() -> Callable[..., BlockNamespace]:
    """The names that expressions may use, those of the loaded block among them."""
    return lambda companions=(): entry.namespace(vars(sys.modules["block"]), list(companions))


@pytest.fixture
def constructor(load: Any, names: Any) -> Callable[..., Constructor]:
    """A constructor of the class in a block's text."""

    def made(text: str, name: str = "A", **hints: Any) -> Constructor:
        cls = load(text, name)
        others = [
            key
            for key, value in vars(sys.modules["block"]).items()
            if isinstance(value, type) and value.__module__ == "block" and value is not cls
        ]
        return Constructor(cls, names(hints.get("companions", ())), hints, TimeBudget(), tuple(others))

    return made


@pytest.fixture
def forward(constructor: Any) -> Callable[..., Forward]:
    """A search of inputs for the class in a block's text, constructed with given arguments."""

    def made(text: str, arguments: Arguments | None = None, **hints: Any) -> Forward:
        maker = constructor(text, **hints)
        return Forward(maker.make(arguments or Arguments()), maker, maker.names, maker.hints, maker.budget)

    return made


@pytest.fixture
def climb() -> Callable[..., dict[str, Any]]:
    """What the entry says of a block's text, in this process."""

    def climbed(text: str, name: str = "A", goal: str = "backward", **hints: Any) -> dict[str, Any]:
        linecache.clearcache()
        return entry.search_arguments(
            {"code": IMPORTS + textwrap.dedent(text), "name": name, "goal": goal, "hints": hints}
        )

    return climbed


@pytest.fixture
def fails(load: Any, names: Any) -> Callable[..., tuple[nn.Module, FailedCall]]:
    """Runs a block's class on inputs that it does not take.

    Returns: the module, and the situation after the failure.
    """

    def failed(text: str, inputs: Inputs, *, loss: bool = False) -> tuple[nn.Module, FailedCall]:
        module: nn.Module = load(text)().eval()
        with pytest.raises(AttemptError) as caught:
            run(module, as_call(inputs), names())
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(module.forward).parameters
        return module, FailedCall(caught.value, inputs, parameters, read_layers(module), loss)

    return failed


@pytest.fixture
def first_repair(names: Any) -> Callable[..., tuple[int, Inputs]]:
    """The place of the first repair that works among those that the search would try, and the repair."""

    def found(module: nn.Module, at: FailedCall, most: int = 16) -> tuple[int, Inputs]:
        tried: list[Inputs] = []
        for item in repairs(at):
            if item in tried:
                continue
            if len(tried) == most:
                break
            tried.append(item)
            try:
                run(module, as_call(item), names())
            except AttemptError:
                continue
            return len(tried) - 1, item
        shown = "\n".join(str(as_call(item).kwargs) for item in tried)
        raise AssertionError(f"{at.failure.message}: none of {len(tried)} repairs works:\n{shown}")

    return found
