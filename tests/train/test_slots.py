"""Slots: sizes to try, what is worth trying, which constructor arguments carry what, and what recipes may write."""

import pytest

from lemur_core.files.errors import UserError
from tests.builders import slot_blocks
from train.compose.library import build_from_recipe, list_builds
from train.model.recipe import ModelSettings, Slots
from train.model.slots import BUILT_IN, SLOTS, list_sizes, list_widths, suits


def test_slots_are_those_of_a_recipe() -> None:
    assert set(SLOTS) == set(Slots.model_fields) == set(BUILT_IN)
    for slot, default in Slots():
        assert default.use == "none" or default.use in BUILT_IN[slot]


def test_sizes() -> None:
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


SUITS = {
    "PreAct": {"stem", "residual", "attention", "norm"},
    "Gate": {"stem", "residual", "attention", "norm"},
    "Blur": {"downsample"},
    "Square": {"activation"},
    "DropBranch": {"norm", "activation", "stochastic_depth"},
    "PoolHead": {"head"},
}


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


BOUND = [
    ("attention", "channels reduction=4", {"channels": "16", "reduction": "8"}, "channels=channels"),
    ("attention", "dim hidden", {"dim": "16", "hidden": "7"}, "dim=channels, hidden=7"),
    ("attention", "odd", {"odd": "16"}, "odd=channels"),
    ("residual", "inplanes planes stride=1", {"inplanes": "16", "planes": "16"}, "inplanes=channels, planes=channels"),
    ("residual", "in_chs out_chs=none", {"in_chs": "16"}, "in_chs=channels, out_chs=channels"),
    ("downsample", "channels=none stride=1", {"stride": "2"}, "channels=channels, stride=2"),
    ("downsample", "pool", {"pool": "nn.AvgPool2d(2)"}, "pool=nn.AvgPool2d(2)"),
    (
        "stem",
        "in_ch out_ch stride=2",
        {"in_ch": "3", "out_ch": "8"},
        "in_ch=in_channels, out_ch=out_channels, stride=1",
    ),
    ("stochastic_depth", "p mode", {"p": "0.0", "mode": "'batch'"}, "p=rate, mode='row'"),
    ("head", "in_features num_classes", {}, "in_features=channels, num_classes=classes"),
    ("activation", "inplace=false", {"inplace": "True"}, ""),
]


@pytest.mark.parametrize(("slot", "constructor", "recorded", "first"), BOUND)
def test_the_first_arguments_to_try(slot: str, constructor: str, recorded: dict[str, str], first: str) -> None:
    assert builds(slot, constructor, **recorded)[0] == first


def test_other_arguments_to_try() -> None:
    found = builds("attention", "channels reduction=4", channels="16", reduction="8")
    assert found == ("channels=channels", "channels=channels, reduction=8")
    assert "in_dim=channels, out_dim=out_channels" in builds("downsample", "in_dim out_dim", in_dim="4", out_dim="8")
    given = {"channels": "16", "config": "Config(1)"}  # a name of the block's own file
    assert builds("attention", "channels config=none", **given)[0] == "channels=channels"
    assert not any("Config" in build for build in builds("attention", "channels config", **given))


@pytest.mark.parametrize(
    ("arguments", "build"),
    [
        ({"dim": "$channels", "ratio": 0.25}, "dim=channels, ratio=0.25"),
        ({"norm_layer": "$norm_activation", "conv": "$conv"}, "norm_layer=make_norm_activation, conv=make_conv"),
        ({"drop_path": "$rate", "mode": 'a "b"'}, 'drop_path=rate, mode="a \\"b\\""'),
        (
            {"sizes": [1, "$channels"], "cfg": {"type": "BN", "n": "$channels"}},
            'sizes=[1, channels], cfg={"type": "BN", "n": channels}',
        ),
        ({"bias": True}, "bias=True"),
    ],
)
def test_arguments_of_a_recipe(arguments: dict[str, object], build: str) -> None:
    assert build_from_recipe("residual", arguments, "slots.residual.arguments") == build


@pytest.mark.parametrize(
    ("slot", "arguments", "said"),
    [
        ("norm", {"n": "$rate"}, "slots.norm.arguments.n: no placeholder '$rate' in slot norm; there are: $channels"),
        ("activation", {"n": "$channels"}, "there are: none"),
        ("attention", {"a b": 1}, "slots.attention.arguments.a b: not the name of an argument"),
        ("attention", {"when": object()}, "is not a valid argument"),
    ],
)
def test_wrong_arguments_of_a_recipe(slot: str, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        build_from_recipe(slot, arguments, f"slots.{slot}.arguments")
    assert said in str(caught.value)
