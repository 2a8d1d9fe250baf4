"""Emitted files are read back unchanged, and emitted again if any of their inputs differs."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from extract.emit.emit import Emitted, Emitter, Unresolved
from extract.resolve.discover import TargetClass
from extract.resolve.modules import Definition
from extract.sources import PackageSource
from lemur_core.files.cache import seal

TEXT = """
    --- lib/__init__.py
    --- lib/gates.py
    import numpy, torch, importlib
    from torch import nn
    from .missing import nothing
    def half(x): return x / 2
    class Gate(nn.Module):
        def forward(self, x: 'Absent'): return half(importlib.import_module(x.name)(x)) + undefined
    class Lost(nn.Module):
        def forward(self, x): return nothing(x)
    class Outer(Gate):
        class Inner(nn.Module):
            def forward(self, x): return numpy.abs(x)
"""


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the classes that were emitted, not read from the cache."""
    told: list[str] = []
    emit = Emitter._emit

    def telling(self: Emitter, found: TargetClass, also: Sequence[Definition]) -> Emitted | Unresolved:
        told.append(found.name)
        return emit(self, found, also)

    monkeypatch.setattr(Emitter, "_emit", telling)
    return told


def outcomes(made: Any, sources: Sequence[PackageSource]) -> list[Emitted | Unresolved]:
    emitter = Emitter(made.library, made.index, sources)
    return [emitter.emit(found) for found in made.found]


def test_nothing_is_emitted_twice(corpus: Any, emitted: list[str]) -> None:
    made = corpus(TEXT)
    fresh = [Emitter(made.library, made.index).emit(found) for found in made.found]
    assert {type(outcome) for outcome in fresh} == {Emitted, Unresolved}
    emitted.clear()
    assert outcomes(made, made.sources) == fresh
    assert len(emitted) == len(fresh)
    assert outcomes(made, made.sources) == fresh
    assert len(emitted) == len(fresh)


def test_what_is_damaged_is_emitted_anew(corpus: Any, emitted: list[str]) -> None:
    made = corpus(TEXT)
    fresh = outcomes(made, made.sources)
    emitted.clear()
    for value in (b"", b"no zlib", *(zlib.compress(text) for text in (b"1", b"{}", b"[", b'{"reason": "?"}'))):
        made.index._database.write("UPDATE results SET value = ? WHERE key LIKE '%emitted:%'", [(seal(value),)])
        assert outcomes(made, made.sources) == fresh
        assert len(emitted) == len(fresh)
        emitted.clear()


@pytest.mark.parametrize("change", [{"digest": "another"}, {"license": "MIT"}, {"symbols": ("Gate",)}, {"priority": 9}])
def test_other_sources_are_other_files(corpus: Any, emitted: list[str], change: dict[str, Any]) -> None:
    made = corpus(TEXT)
    outcomes(made, made.sources)
    emitted.clear()
    outcomes(made, [replace(source, **change) for source in made.sources])
    assert len(emitted) == len(made.found)
