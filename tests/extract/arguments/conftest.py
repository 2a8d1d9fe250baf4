"""Blocks written by tests, loaded as the sandbox loads them; and what the search keeps of the process is put back."""

import linecache
import mimetypes
import ssl
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from extract.arguments import search_guest as entry
from extract.arguments.constructing import Arguments, Constructor
from extract.arguments.forwarding import Search
from extract.arguments.trials import BlockNamespace, TimeBudget
from extract.arguments.values import read_compared
from lemur_core.sandbox.server.compiler import defer_compiler

defer_compiler()  # as in the sandbox; the import takes longer than that of the rest of torch

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
    for owner, name in ((time, "sleep"), (torch, "compile"), (ssl, "_create_default_https_context")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(mimetypes, "knownfiles", [*mimetypes.knownfiles])
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
def search(load: Any, names: Any) -> Callable[..., Search]:
    """The search for calls of the class in a block's text. Args: only: arguments of the one module to run. construct: no forward."""

    def made(
        text: str, name: str = "A", *, only: Arguments | None = None, construct: bool = False, **hints: Any
    ) -> Search:
        cls = load(text, name)
        block = vars(sys.modules["block"]).items()
        others = [key for key, value in block if isinstance(value, type) and value.__module__ == "block"]
        known = names(hints.get("companions", ()))
        constructor = Constructor(cls, known, hints, TimeBudget(), tuple(key for key in others if key != name))
        return Search(constructor, only=constructor.make(only) if only is not None else None, forward=not construct)

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
