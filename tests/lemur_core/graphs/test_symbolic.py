"""Formulas for sizes: each kind is found, and what is none of them is not."""

import pytest

from lemur_core.graphs.symbolic import Size, formula

HEIGHTS, WIDTHS = (17, 19, 22, 17, 17, 24), (33, 33, 33, 35, 38, 40)
ATOMS = {"H": Size(HEIGHTS), "W": Size(WIDTHS)}
KINDS = [
    "H",
    "2 * H + 1",
    "48 - W",
    "(H - 1) // 2 + 1",
    "H // 4",
    "-H % 7",
    "H * W",
    "H * W * 3",
    "H * W // 1 * 4",
    "W * (H // 2)",
    "1 / (H * W)",
    "H ** -0.5",
]


@pytest.mark.parametrize("text", KINDS)
def test_a_formula_holds_at_sizes_that_it_was_not_made_from(text: str) -> None:
    def at(height: int, width: int) -> float:
        return float(eval(text, {"H": height, "W": width}))

    size = Size(tuple(at(*point) for point in zip(HEIGHTS, WIDTHS, strict=True)))
    found = formula(size, ATOMS)
    assert found is not None
    for height in range(15, 29):
        for width in (31, 36, 41):
            assert eval(found, {"H": height, "W": width}) == pytest.approx(at(height, width))


@pytest.mark.parametrize("values", [(1, 7, 2, 9, 4, 3), (17, 19, 22, 17, 18, 24)])
def test_no_formula_for_what_follows_no_size(values: tuple[int, ...]) -> None:
    assert formula(Size(values), ATOMS) is None
