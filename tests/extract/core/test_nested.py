"""Nested classes: blocks if a module-level expression evaluates to them, else a reason."""

from extract.emit.emit import Emitted
from tests.builders.suites import Case, suite

HEAD = "from torch import nn\n"


@suite(__file__, "nested.md", verbs=("block", "is", "gives"))
def test_it_is_the_class_that_the_original_gives(corpus, closed, run, original, case: Case) -> None:  # type: ignore[no-untyped-def]
    qualname, expression = case.one("block"), case.one("is")
    made = corpus(case.files)
    assert f"p.{qualname}" in made.names()
    outcome = made.emit(f"p.{qualname}")
    code = closed(outcome)
    with original(made, "p.a") as names:
        theirs = eval(expression, names)
        assert theirs.__name__ == "Inner"
        expected = theirs()(1)
    assert run(code)["Inner"]()(1) == expected
    assert expected == case.value("gives")
    assert outcome.target.block == f"{made.sources[0].name}::p.{qualname}"
    first, last = outcome.target.lines
    lines = (made.folder / "p/a.py").read_text().splitlines()
    assert lines[first - 1].strip().startswith("class Inner(")
    assert lines[last - 1].startswith(" " * (len(lines[first - 1]) - len(lines[first - 1].lstrip()) + 1))
    assert f"named at the end: Inner = {expression}" in code


def test_a_bare_name_means_the_class_of_module_level(corpus) -> None:  # type: ignore[no-untyped-def]
    from extract.resolve.discover import Selection, select

    made = corpus(
        {
            "p/a.py": f"{HEAD}class Outer:\n    class Net(nn.Module):\n        def forward(self, x): return x\n",
            "p/b.py": f"{HEAD}class Net(nn.Module):\n    def forward(self, x): return x\n",
        }
    )
    assert [one.qualname for one in select(made.found, Selection(names=("Net",))).classes] == ["p.b.Net"]
    assert isinstance(made.emit("p.a.Outer.Net"), Emitted)
