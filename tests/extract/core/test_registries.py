"""Registries and strings that name classes: resolved statically, and replaced by a small class in the block's file."""

from pathlib import Path

import pytest

from tests.builders.suites import read_suite
from tests.extract.core.test_behaves import VERBS

#: The files of the page: a registry with a parent, as OpenMMLab writes them, small.
REGISTRY = read_suite(Path(__file__).with_name("registries.md"), VERBS)[0].files


def test_a_decorator_of_a_registry_is_left_out(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    code = closed(corpus(REGISTRY).emit("Many"))
    assert "\nclass Many(nn.Module):\n" in code
    assert '#   left out the decorator @MODELS.register_module(name=["One", "Two"])' in code
    assert "class Registry" not in code


@pytest.mark.parametrize("order", [False, True], ids=["mine first", "mine last"])
def test_the_own_source_comes_first(corpus, closed, run, order: bool) -> None:  # type: ignore[no-untyped-def]
    """Two sources register the same name in the same registry: each finds its own entry."""
    other = "from torch import nn\nfrom p.root import MODELS\n@MODELS.register_module()\nclass Plain(nn.Module):\n    def forward(self, x): return 'other'\nclass A(nn.Module):\n    def forward(self, x): return MODELS.build(dict(type='Plain'))(x)\n"
    name = "a" if order else "q"
    made = corpus({f"{name}/other.py": other} | REGISTRY, apart=True)
    assert run(closed(made.emit(f"{name}.other.A")))["A"]()(1) == "other"


def test_a_table_that_registers_nothing_stays_what_it_is(behaves) -> None:  # type: ignore[no-untyped-def]
    code = behaves(
        """
        --- p/table.py
        class _SeenRegistry(dict):
            def get(self, key):
                return super().get(str(key)) or {}
        SEEN = _SeenRegistry()
        SEEN["1"] = {"one": 1}
        --- p/a.py
        from torch import nn
        from .table import SEEN
        class A(nn.Module):
            def forward(self, x): return dict(SEEN.get(x))
        """,
        "A()(1), A()(2)",
        ({"one": 1}, {}),
    )
    assert "class _SeenRegistry(dict):" in code
