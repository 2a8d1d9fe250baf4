"""Which numbers are widths: calls in the order in which they are tried."""

from collections.abc import Mapping, Sequence

import pytest

from extract.migrate.insertion_points import MOST_CALLS, calls
from extract.specs.make import StatedArguments
from manifests.records import SpecArgument


def parameter(name: str, default: str | None = None) -> SpecArgument:
    return SpecArgument(name=name, kind="positional", default=default)


def texts(
    init: StatedArguments,
    channels: Mapping[int, Sequence[int]],
    sizes: Mapping[int, int] | None = None,
    constructor: Sequence[SpecArgument] = (),
) -> list[str]:
    return [call.text() for call in calls(init, constructor, channels, sizes or {})]


def test_the_call_as_it_is_comes_first_then_the_one_with_all_widths() -> None:
    found = texts(StatedArguments(("32",), {"hidden": "32", "heads": "4"}), {32: [64]})
    assert found[:2] == ["32, hidden=32, heads=4", "64, hidden=64, heads=4"]
    assert set(found[2:]) == {"64, hidden=32, heads=4", "32, hidden=64, heads=4"}


def test_the_first_number_is_what_comes_in_and_the_last_what_goes_out() -> None:
    assert texts(StatedArguments(("32", "32")), {32: [64, 96]})[1] == "64, 96"
    assert texts(StatedArguments(("32", "16")), {32: [64], 16: [96]})[1] == "64, 96"


def test_numbers_inside_expressions_count_and_others_stay() -> None:
    found = texts(StatedArguments(("[32, 7]", "nn.LayerNorm(32)"), {"name": "'é32'", "wide": "{'é': 32}"}), {32: [8]})
    assert found[1] == "[8, 7], nn.LayerNorm(8), name='é32', wide={'é': 8}"


def test_parameters_left_out_count_with_their_defaults() -> None:
    found = texts(StatedArguments(()), {32: [64]}, constructor=[parameter("dim", "32"), parameter("depth", "2")])
    assert found == ["", "dim=64"]


def test_of_few_channels_the_fewest_numbers_are_changed_first() -> None:
    found = texts(StatedArguments(("1",), {"dilation": "1", "groups": "1"}), {1: [64]})
    assert found[1] == "64, dilation=1, groups=1"
    assert found[-1] == "64, dilation=64, groups=64"


def test_other_sizes_are_changed_after_the_widths() -> None:
    found = texts(StatedArguments(("32", "(8, 8)")), {32: [64]}, {8: 4})
    assert found.index("64, (8, 8)") < found.index("64, (4, 4)")


def test_true_and_fractions_are_no_numbers_of_channels() -> None:
    assert texts(StatedArguments(("True", "1.0")), {1: [64]}) == ["True, 1.0"]


@pytest.mark.parametrize("count", [7, 12])
def test_many_numbers_are_not_read_in_all_ways(count: int) -> None:
    found = texts(StatedArguments(("32",) * count), {32: [64]})
    assert found[1] == ", ".join(["64"] * count)
    assert len(found) <= MOST_CALLS
