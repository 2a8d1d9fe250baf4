"""Nested classes: blocks if a module-level expression evaluates to them, else a reason."""

import pytest

from extract.emit.emit import Emitted, Unresolved
from extract.resolve.symbols import Reason

HEAD = "from torch import nn\n"
GIVEN = {
    "a class in a class": (
        """
        class Outer(nn.Module):
            class Inner(nn.Module):
                def forward(self, x): return x + 1
            def __init__(self):
                super().__init__()
                self.inner = self.Inner()
            def forward(self, x): return self.inner(x)
        """,
        "a.Outer.Inner",
        "Outer.Inner",
    ),
    "in a class that is no module": (
        """
        STEP = 1
        class Models:
            class Deep:
                class Inner(nn.Module):
                    def forward(self, x): return x + STEP
        """,
        "a.Models.Deep.Inner",
        "Models.Deep.Inner",
    ),
    "a factory, closed over its default": (
        """
        def make(step=1):
            class Inner(nn.Module):
                def forward(self, x): return x + step
            return Inner
        """,
        "a.make.Inner",
        "make()",
    ),
    "a factory that the file calls": (
        """
        import functools
        @functools.lru_cache(maxsize=None)
        def make(step, *, scale):
            class Base(nn.Module):
                def forward(self, x): return x * scale + step
            class Inner(Base):
                pass
            return Inner
        Three = make(-2, scale=3)
        """,
        "a.make.Inner",
        "make(-2, scale=3)",
    ),
    "beside a class of the same name": (
        """
        class Inner(nn.Module):
            def forward(self, x): return x
        class Outer:
            other = Inner()
            class Inner(nn.Module):
                def forward(self, x): return Outer.other(x) + 1
        """,
        "a.Outer.Inner",
        "Outer.Inner",
    ),
}


@pytest.mark.parametrize("case", GIVEN)
def test_it_is_the_class_that_the_original_gives(corpus, closed, run, original, case: str) -> None:  # type: ignore[no-untyped-def]
    text, qualname, expression = GIVEN[case]
    made = corpus(f"--- p/__init__.py\n--- p/a.py\n{HEAD}" + "\n".join(line[8:] for line in text.splitlines()))
    assert f"p.{qualname}" in made.names()
    outcome = made.emit(f"p.{qualname}")
    code = closed(outcome)
    with original(made, "p.a") as names:
        theirs = eval(expression, names)
        assert theirs.__name__ == "Inner"
        expected = theirs()(1)
    assert run(code)["Inner"]()(1) == expected
    assert expected == (1 if case == "a factory that the file calls" else 2)
    assert outcome.found.block == f"{made.sources[0].name}::p.{qualname}"
    first, last = outcome.found.lines
    lines = (made.folder / "p/a.py").read_text().splitlines()
    assert lines[first - 1].strip().startswith("class Inner(")
    assert lines[last - 1].startswith(" " * (len(lines[first - 1]) - len(lines[first - 1].lstrip()) + 1))
    assert f"named at the end: Inner = {expression}" in code


REFUSED = {
    "a function that returns an instance": (
        "def make():\n    class Inner(nn.Module):\n        def forward(self, x): return x\n    return Inner()\n",
        "it is defined when make runs, which does not return it",
    ),
    "what nobody gives": (
        "def make(a, b, c=1):\n    class Inner(nn.Module):\n        def forward(self, x): return x + a\n    return Inner\n"
        "def other(x): return make(x, 2)\n",
        "it depends on arguments of make: a, b",
    ),
    "a method": (
        "class Outer:\n    def make(self):\n        class Inner(nn.Module):\n            def forward(self, x): return x\n"
        "        return Inner\n",
        "it is defined when method make of Outer runs",
    ),
    "a decorated function": (
        "def wrap(f): return lambda: f() or 1\n@wrap\ndef make():\n    class Inner(nn.Module):\n"
        "        def forward(self, x): return x\n    return Inner\n",
        "it is defined when make runs, which is decorated",
    ),
    "one of two": (
        "def make(x=0):\n    class Inner(nn.Module):\n        def forward(self, x): return x\n"
        "    if x:\n        return Inner\n    return None\n",
        "it is defined when make runs, which does not return it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_reason_is_said_where_nothing_gives_it(corpus, case: str) -> None:  # type: ignore[no-untyped-def]
    text, reason = REFUSED[case]
    outcome = corpus(f"--- p/a.py\n{HEAD}{text}").emit("Inner")
    assert isinstance(outcome, Unresolved)
    assert (outcome.reason, outcome.detail) == (Reason.NESTED_CLASS, reason)


def test_a_bare_name_means_the_class_of_module_level(corpus) -> None:  # type: ignore[no-untyped-def]
    from extract.resolve.discover import Selection, select

    made = corpus(
        {
            "p/a.py": f"{HEAD}class Outer:\n    class Net(nn.Module):\n        def forward(self, x): return x\n",
            "p/b.py": f"{HEAD}class Net(nn.Module):\n    def forward(self, x): return x\n",
        }
    )
    assert [one.qualname for one in select(made.found, Selection(names=("Net",))).found] == ["p.b.Net"]
    assert isinstance(made.emit("p.a.Outer.Net"), Emitted)
