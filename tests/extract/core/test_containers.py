"""Containers that are filled outside of their definition: the block's file has the same contents as after an import.

Registries, and strings that name classes, are resolved statically and replaced by a small class in the block's file.
"""

from pathlib import Path

import pytest

from extract.emit.emit import Emitted
from tests.builders.suites import Case, read_suite, suite
from tests.extract.core.test_behaves import VERBS


def test_an_entry_that_cannot_come_along_is_said(corpus, closed, run) -> None:  # type: ignore[no-untyped-def]
    made = corpus(
        """
        --- p/a.py
        from torch import nn
        from .gone import absent
        LAYERS = {}
        def register(f):
            LAYERS[f.__name__] = f
            return f
        @register
        def good(x): return x
        @register
        def bad(x): return absent(x)
        class A(nn.Module):
            def forward(self, x): return sorted(LAYERS)
        """
    )
    outcome = made.emit("A")
    assert run(closed(outcome))["A"]()(1) == ["good"]
    assert isinstance(outcome, Emitted)
    (told,) = outcome.dynamic
    assert told.startswith("LAYERS lacks 1 entry: ")
    assert "absent: " in told


@suite(__file__, "lookups.md", verbs=("says",))
def test_what_is_known_of_a_string_decides_what_is_said(corpus, closed, case: Case) -> None:  # type: ignore[no-untyped-def]
    outcome = corpus(case.files).emit("A")
    closed(outcome)
    if case.one("says") == "nothing":
        assert outcome.dynamic == ()
    else:
        (note,) = outcome.dynamic
        assert case.one("says") in note


#: The files of the page: a registry with a parent, as OpenMMLab writes them, small.
REGISTRY = read_suite(Path(__file__).with_name("registries.md"), VERBS)[0].files


def test_a_decorator_of_a_registry_is_left_out(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    code = closed(corpus(REGISTRY).emit("Many"))
    assert "\nclass Many(nn.Module):\n" in code
    header = " ".join(code.partition("\n\n")[0].replace("#", "").split())
    assert 'left out the decorators @MODELS.register_module(name=["One", "Two"])' in header
    assert "class Registry" not in code


@pytest.mark.parametrize("order", [False, True], ids=["mine first", "mine last"])
def test_the_own_source_comes_first(corpus, closed, run, order: bool) -> None:  # type: ignore[no-untyped-def]
    """Two sources register the same name in the same registry: each finds its own entry."""
    other = "from torch import nn\nfrom p.root import MODELS\n@MODELS.register_module()\nclass Plain(nn.Module):\n    def forward(self, x): return 'other'\nclass A(nn.Module):\n    def forward(self, x): return MODELS.build(dict(type='Plain'))(x)\n"
    name = "a" if order else "q"
    made = corpus({f"{name}/other.py": other} | REGISTRY, apart=True)
    assert run(closed(made.emit(f"{name}.other.A")))["A"]()(1) == "other"


@pytest.mark.parametrize("decorator", ["@registry.enlist('one')", "@Registry.enlist('one')", "@registry.keep"])
def test_a_method_that_registers_brings_its_registry_where_something_looks_up(  # type: ignore[no-untyped-def]
    corpus, closed, run, decorator
) -> None:
    registry = """class Base:
    losses = {}
    @classmethod
    def enlist(cls, name):
        def wrap(item):
            cls.losses[name] = item
            return item
        return wrap
    def keep(self, item):
        self.losses["one"] = item
        return item
    def count(self): return gone_package_.count(self.losses)
class Registry(Base): ...
registry = Registry()
"""
    net = f"""from torch import nn
from p.registry import registry, Registry
{decorator}
class One(nn.Module):
    def forward(self, x): return x + 1
class Both(nn.Module):
    def forward(self, x): return registry.losses["one"]()(x)
"""
    made = corpus({"p/__init__.py": "", "p/registry.py": registry, "p/net.py": net})
    one = closed(made.emit("One"))
    assert "Registry" not in one.split("\n\n", 1)[1]
    assert f"left out the decorators {decorator}" in one
    assert run(closed(made.emit("Both")))["Both"]()(1) == 2
