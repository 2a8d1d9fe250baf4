"""The structural fingerprint: which calls count, and how their sizes are read."""

import ast
import warnings

import pytest

from curate.model.features import Features, code_features
from lemur_core.similarity.outline import outline_tree
from lemur_core.similarity.views import SEQUENCE_CALLS, fingerprint
from tests.builders.suites import table


def fp(source: str):  # type: ignore[no-untyped-def]
    return fingerprint(outline_tree(ast.parse(source)))


def same(a: str, b: str) -> bool:
    one, two = fp(a), fp(b)
    equal: bool = one.digest == two.digest
    if equal:
        assert one.elements.tolist() == two.elements.tolist()
    return equal


@table(__file__, "fingerprint.md", "Same", globals())
def test_same(a: str, b: str) -> None:
    assert same(a, b)


@table(__file__, "fingerprint.md", "Different", globals())
def test_different(a: str, b: str) -> None:
    assert not same(a, b)


def test_order_is_in_the_digest_not_in_the_elements() -> None:
    one, two = fp("a(); b()"), fp("b(); a()")
    assert one.elements.tolist() == two.elements.tolist()
    beyond = "x();" * SEQUENCE_CALLS
    assert same(beyond + "a(); b()", beyond + "b(); a()")  # only the first calls count for the order


@pytest.mark.parametrize("glue", ["train_setup", "learn", "supported_hyperparameters"])
def test_glue_is_left_out(glue: str) -> None:
    body = "class Net(nn.Module):\n    def __init__(self):\n        self.a = Conv2d(3, 8, 3)\n"
    with_glue = f"{body}    def {glue}(self):\n        torch.optim.SGD(self.parameters(), lr=Linear(3))\n"
    with_inner = f"{with_glue}        def inner():\n            return Linear(9)\n"
    other = with_glue.replace(glue, "helper")
    assert same(body, with_glue)
    assert same(body, with_inner)
    assert not same(body, other)
    assert fp(body).layers == 1


@table(__file__, "fingerprint.md", "Buckets", globals())
def test_buckets(value: str, twin: str) -> None:
    assert same(f"Block(width={value})", f"Block(width={twin})")


@pytest.mark.parametrize(
    "value", ["'3'", "n", "2 * 3", "[1, 2]", "1j", "None", "(1,) * 9", "(1, 2, 3, 4, 5, 6, 7, 8, 9)"]
)
def test_what_is_no_size(value: str) -> None:
    assert same(f"Block(width={value})", "Block()")


def test_huge_numbers() -> None:
    assert same("Block(width=1" + "0" * 4000 + ")", "Block(width=1e999)")
    assert not same("Block(width=1" + "0" * 100 + ")", "Block(width=1e999)")


def test_calls_without_a_name_do_not_count() -> None:
    assert fp("a()()").layers == 1
    assert fp("table[0]()").layers == 0
    assert len(fp("table[0]()").elements) == 0


@pytest.mark.parametrize("deep", [100, 1000])
def test_deep_nesting(deep: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = code_features("x = a" + ".b()" * deep + "\n")
    assert isinstance(found, Features)
    assert len(found.elements) == 1


def test_elements_are_sorted_and_distinct() -> None:
    elements = fp("nn.Conv2d(3, 64, 7); nn.Conv2d(3, 64, 7); nn.ReLU()").elements.tolist()
    assert elements == sorted(set(elements))
    assert len(elements) == 2 + 3  # Conv2d twice, ReLU once; three sizes
