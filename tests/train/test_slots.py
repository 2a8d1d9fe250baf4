"""Slots: sizes to try, what is worth trying, which constructor arguments carry what, and what recipes may write."""

import pytest

from lemur_core.files.errors import UserError
from tests.builders import slot_blocks
from tests.builders.suites import read_table, table
from train.compose.candidates import build_from_recipe, list_builds
from train.model.recipe import ModelSettings, Slots
from train.model.slots import BUILT_IN, SLOTS, list_sizes, list_widths, suits


def test_slots_and_their_sizes() -> None:
    assert set(SLOTS) == set(Slots.model_fields) == set(BUILT_IN)
    for slot, default in Slots():
        assert default.use == "none" or default.use in BUILT_IN[slot]
    expected = {
        "stem": [{"in_channels": 3, "out_channels": 8}],
        "residual": [{"channels": 8}, {"channels": 16}],
        "downsample": [{"channels": 8, "out_channels": 16}, {"channels": 16, "out_channels": 16}],
        "head": [{"channels": 16, "classes": 10}],
    }
    assert {slot: list_sizes(slot, (8, 16, 16)) for slot in expected} == expected
    assert list_sizes("downsample", (8,)) == [{"channels": 8, "out_channels": 8}], "of one stage"
    model = ModelSettings(widths=(8, 16), depths=(0, 2))
    assert (list_widths("attention", model), list_widths("norm", model)) == ((16,), (8, 16))


SUITS = read_table(__file__, "slots.md", "Suits", globals())


@pytest.mark.parametrize("name", SUITS)
def test_what_is_worth_trying(name: str) -> None:
    qualname = next(one for one in slot_blocks.LIBRARY if one.endswith(f".{name}"))
    spec = slot_blocks.make_spec(qualname)
    assert {slot for slot in SLOTS if suits(slot, spec)} == SUITS[name]
    assert not any(suits(slot, spec.model_copy(update={"level": "executed"})) for slot in SLOTS)
    assert not any(suits(slot, spec.model_copy(update={"cases": ()})) for slot in SLOTS)


def builds(slot: str, constructor: str, **recorded: str) -> tuple[str, ...]:
    """The arguments to try for a block with such a constructor, of which such arguments worked."""
    slot_blocks.LIBRARY["kit.made.Made"] = (
        slot_blocks.TEXTS["GATE"],
        constructor,
        recorded,
        slot_blocks.IMAGE,
        slot_blocks.IMAGE,
    )
    try:
        return list_builds(slot, slot_blocks.make_block("kit.made.Made"), slot_blocks.make_spec("kit.made.Made"))
    finally:
        del slot_blocks.LIBRARY["kit.made.Made"]


@table(__file__, "slots.md", "The first arguments to try", globals())
def test_the_first_arguments_to_try(slot: str, constructor: str, recorded: dict[str, str], first: str) -> None:
    assert builds(slot, constructor, **recorded)[0] == first


def test_other_arguments_to_try() -> None:
    found = builds("attention", "channels reduction=4", channels="16", reduction="8")
    assert found == ("channels=channels", "channels=channels, reduction=8")
    assert "in_dim=channels, out_dim=out_channels" in builds("downsample", "in_dim out_dim", in_dim="4", out_dim="8")
    given = {"channels": "16", "config": "Config(1)"}  # a name of the block's own file
    assert builds("attention", "channels config=none", **given)[0] == "channels=channels"
    assert not any("Config" in build for build in builds("attention", "channels config", **given))


@table(__file__, "slots.md", "Arguments of a recipe", globals())
def test_arguments_of_a_recipe(arguments: dict[str, object], build: str) -> None:
    assert build_from_recipe("residual", arguments, "slots.residual.arguments") == build


@table(__file__, "slots.md", "Wrong arguments of a recipe", globals())
def test_wrong_arguments_of_a_recipe(slot: str, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        build_from_recipe(slot, arguments, f"slots.{slot}.arguments")
    assert said in str(caught.value)
