"""Containers that are filled outside of their definition: the block's file has the same contents as after an import."""

from extract.emit.emit import Emitted
from tests.builders.suites import Case, suite


def test_a_container_that_nothing_reads_stays_behind(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    """A decorator that only records is omitted if the block does not read the container that it fills."""
    made = corpus(
        """
        --- p/a.py
        from torch import nn
        LAYERS = {}
        def register(cls):
            LAYERS[cls.__name__] = cls
            return cls
        @register
        class A(nn.Module):
            def forward(self, x): return x
        """
    )
    code = closed(made.emit("A"))
    assert "LAYERS" not in code.split("# Changed")[1]


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


def test_a_search_that_cannot_be_known_is_said(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    made = corpus(
        """
        --- p/a.py
        import importlib
        from torch import nn
        def one(x): return x
        class A(nn.Module):
            def forward(self, x, name="one"): return globals()[name](x), importlib.import_module(name)
        """
    )
    outcome = made.emit("A")
    assert "def one(x)" in closed(outcome)
    source = made.sources[0].name
    assert outcome.dynamic == (
        f"{source} p/a.py:5 imports a module by a computed name",
        f"{source} p/a.py:5 looks a name of its file up by a computed string; it has one",
    )


@suite(__file__, "lookups.md", verbs=("says",))
def test_what_is_known_of_a_string_decides_what_is_said(corpus, closed, case: Case) -> None:  # type: ignore[no-untyped-def]
    outcome = corpus(case.files).emit("A")
    closed(outcome)
    if case.one("says") == "nothing":
        assert outcome.dynamic == ()
    else:
        (note,) = outcome.dynamic
        assert case.one("says") in note
