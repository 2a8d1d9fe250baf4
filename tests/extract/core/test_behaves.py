"""Blocks compute what the original computes, whatever names, bindings, conditions and orders their files have."""

import re
from collections.abc import Callable

import pytest

from tests.builders.suites import Case, suite

Behaves = Callable[..., str]
PAGES = (
    "names.md", "order.md", "changes.md", "containers.md", "strings.md", "conditions.md", "imports.md", "registries.md",
)  # fmt: skip
VERBS = ("gives", "has", "has line", "lacks", "header has", "header lacks")


@suite(__file__, *PAGES, verbs=VERBS)
def test_behaves_as_the_original(behaves: Behaves, case: Case) -> None:
    expression, expected = case.equation()
    code = behaves(case.files, expression, expected, name="p.a.Block" if expression.startswith("Block") else "A")
    header, body = re.fullmatch(r"((?:#[^\n]*\n)*)(.*)", code, re.S).groups()  # type: ignore[union-attr]
    case.check_text(body)
    assert all(part in header for part in case.all("header has"))
    assert not any(part in header for part in case.all("header lacks"))


def test_what_another_package_has_in_one_version(corpus, closed, run) -> None:  # type: ignore[no-untyped-def]
    """Nothing but running the file decides which of the two there is."""
    files = """
    --- p/b.py
    from pydantic import __version__
    HAS_BOTH = not __version__.startswith("1")
    if HAS_BOTH:
        from pydantic.v1 import create_model, root_validator
    else:
        from pydantic import create_model, root_validator
    --- p/a.py
    from torch import nn
    from .b import create_model as get
    class A(nn.Module):
        def forward(self, x): return get(x).__mro__[1].__module__
    """
    code = closed(corpus(files).emit("A"), frozenset({"pydantic"}))
    assert run(code)["A"]()("M") == "pydantic.v1.main"


@pytest.mark.xfail(strict=True, reason="reads of builtins are left out before star imports are known")
def test_a_star_import_shadows_a_builtin(behaves: Behaves) -> None:
    behaves(
        """
        --- p/b.py
        def max(x): return "mine"
        --- p/a.py
        from torch import nn
        from .b import *
        class A(nn.Module):
            def forward(self, x): return max(x)
        """,
        "A()([1])",
        "mine",
    )


def test_a_name_bound_after_the_return_is_not_missing(corpus, run) -> None:  # type: ignore[no-untyped-def]
    """The function's own name, read before it is bound in lines that never run; pyflakes calls it undefined."""
    files = """
        --- p/a.py
        from torch import nn
        def load(path, dtype=None):
            return path
            if dtype is not None:
                weights = {k: v for k, v in weights.items()}
            return weights
        class A(nn.Module):
            def forward(self, x): return load(x)
        """
    emitted = corpus(files).emit("A")
    assert (emitted.undefined, emitted.fault) == ((), "")
    assert run(emitted.code)["A"]()(3) == 3


def test_a_hook_that_the_original_calls_too_early_is_mended(corpus, closed, run) -> None:  # type: ignore[no-untyped-def]
    """The original fails on import (`note` is defined below); in the block, the hook's dependencies come first."""
    files = """
        --- p/a.py
        from torch import nn
        SEEN = []
        class Base(nn.Module):
            def __init_subclass__(cls, **kwargs):
                super().__init_subclass__(**kwargs)
                note(cls)
        class A(Base):
            def forward(self, x): return list(SEEN)
        def note(cls): SEEN.append(cls.__name__)
        """
    assert run(closed(corpus(files).emit("A")))["A"]()(0) == ["A"]


def test_a_form_feed_in_a_string(behaves: Behaves) -> None:
    """It ends no line; a page would not show it."""
    text = "def text():\n        '''a\x0c\n   b'''\n        return text.__doc__"
    head = f"try:\n    import no_such_package_\nexcept ImportError:\n    no_such_package_ = None\n    {text}\n"
    body = "from torch import nn\n" + head + "class A(nn.Module):\n    def forward(self, x): return text()\n"
    behaves({"p/a.py": body}, "A()(1)", "a\x0c\n   b")


def test_an_import_that_fails_fails_in_the_block_too(corpus, closed, run) -> None:  # type: ignore[no-untyped-def]
    files = """
        --- p/b.py
        --- p/a.py
        from torch import nn
        class A(nn.Module):
            def forward(self, x):
                if x:
                    from .b import nothing
                    return nothing
                return 0
        """
    names = run(closed(corpus(files).emit("A")))
    assert names["A"]()(0) == 0
    with pytest.raises(ImportError):
        names["A"]()(1)
