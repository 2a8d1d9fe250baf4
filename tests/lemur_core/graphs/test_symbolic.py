"""Formulas for sizes: each kind is found, and what is none of them is not."""

import pytest

from lemur_core.graphs.symbolic import (
    Size,
    evaluate_formula,
    find_formula,
    list_sizes,
    normalize_formula,
    subtract_sizes,
)
from tests.builders.suites import table

HEIGHTS, WIDTHS = (17, 19, 22, 17, 17, 24), (33, 33, 33, 35, 38, 40)
ATOMS = {"H": HEIGHTS, "W": WIDTHS}


@table(__file__, "symbolic.md", "A formula holds at sizes that it was not made from", globals())
def test_a_formula_holds_at_sizes_that_it_was_not_made_from(text: str) -> None:
    seen = [evaluate_formula(text, {"H": height, "W": width}) for height, width in zip(HEIGHTS, WIDTHS, strict=True)]
    found = find_formula(seen, ATOMS)
    assert found is not None
    for height in range(15, 29):
        for width in (31, 36, 41):
            sizes = {"H": height, "W": width}
            assert evaluate_formula(found, sizes) == pytest.approx(evaluate_formula(text, sizes))


@pytest.mark.parametrize("values", [(1, 7, 2, 9, 4, 3), (17, 19, 22, 17, 18, 24)])
def test_no_formula_for_what_follows_no_size(values: tuple[int, ...]) -> None:
    assert find_formula(values, ATOMS) is None


@pytest.mark.parametrize("text", ["H.real", "__import__('os')", "H +", "H if W else 1", "Q + 1", "H // 0"])
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"H|Q|import"):
        evaluate_formula(text, {"H": 3, "W": 4})


def test_how_far_two_numbers_are_apart() -> None:
    assert subtract_sizes(Size("H // 2", 8), Size("H // 2 - 3", 5)) == 3
    assert subtract_sizes(Size("H", 8), 5) is None
    assert subtract_sizes(Size("H", 8), Size("W", 8)) is None
    assert list_sizes(normalize_formula("(H+1)//2")) == {"H"}
