"""Candidates: blocks of an extraction folder, told by what they do in the sandbox; outcomes are kept."""

from pathlib import Path

import pytest

from lemur_core.files.errors import UserError
from lemur_core.sandbox import cached
from tests.builders import slot_blocks
from tests.builders.suites import table
from train.compose.assemble import SlotCandidate, list_candidates
from train.compose.candidates import build_from_recipe, list_builds, open_library
from train.model.recipe import ModelSettings, Slots
from train.model.slots import BUILT_IN, SLOTS, list_sizes, list_widths, suits

WIDTHS = (8,)


def names(found: list[SlotCandidate]) -> list[str]:
    """Qualified names of those that fit."""
    return [one.block.partition("::")[2] for one in found if one.fits]


def test_each_kind_is_found_by_what_it_does(folder: Path) -> None:
    found = list_candidates("downsample", folder, WIDTHS)
    assert names(found) == ["kit.pool.Blur", "kit.pool.Subsample", "other.pool.Blur"]
    assert [one.facts["antialiased"] for one in found] == [True, False, True]
    dropping = list_candidates("stochastic_depth", folder, WIDTHS)
    assert names(dropping) == ["kit.drop.DropBranch"]
    residual = {one.block.rpartition(".")[2]: one for one in list_candidates("residual", folder, WIDTHS)}
    assert residual["PreAct"].facts["branch_end"] == "last"
    found = list_candidates("attention", folder, WIDTHS)
    assert [one.fits for one in found] == sorted((one.fits for one in found), reverse=True)
    fitting = [one.parameters for one in found if one.parameters is not None]
    assert fitting == sorted(fitting)
    tried = {one.block.rpartition(".")[2] for one in found}
    assert {"Gate", "Net"} <= tried
    assert not {"WithNumpy", "OwnDrop"} & tried


def test_a_second_time_nothing_is_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = list_candidates("downsample", folder, WIDTHS)

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("no sandbox is needed")

    monkeypatch.setattr(cached, "Sandbox", refuse)
    assert list_candidates("downsample", folder, WIDTHS) == first
    with pytest.raises(AssertionError, match="no sandbox"):
        list_candidates("downsample", folder, (4, 8))


def test_wrong_questions(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no blocks\.parquet; pass a folder written by `lemur extract"):
        list_candidates("attention", tmp_path)
    for name in ("blocks.parquet", "specs.jsonl", "required_repos.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "specs.jsonl").write_text("{]\n")
    with pytest.raises(UserError, match="its records cannot be read"):
        open_library(tmp_path)


def test_blocks_are_found_by_the_end_of_their_names(folder: Path) -> None:
    library = open_library(folder)
    for use in ("kit@1.0::kit.gates.Gate", "kit::kit.gates.Gate", "kit.gates.Gate", "gates.Gate", "Gate"):
        found = library.find(use)
        assert found.block == "kit@1.0::kit.gates.Gate"
        assert found.code == slot_blocks.make_block("kit.gates.Gate").code
    for use, said in (
        ("ates.Gate", r"no block 'ates\.Gate'; near names: Gate"),
        ("Blur", r"2 blocks are named 'Blur': kit@1.0::kit.pool.Blur, kit@1.0::other.pool.Blur"),
    ):
        with pytest.raises(UserError, match=said):
            library.find(use)
    right = SlotCandidate("kit@1::Blur", True, None, "channels=channels", 0, {"antialiased": True, "stride": 1})
    assert right.line() == "fits kit@1::Blur(channels=channels): 0 parameters, antialiased, stride 1"
    wrong = SlotCandidate("kit@1::Post", False, "has no identity shortcut", "dim=channels", None, {})
    assert wrong.line() == "no   kit@1::Post: has no identity shortcut"


# Slots: sizes to try, what is worth trying, which constructor arguments carry what, and what recipes may write.


def test_slots_and_their_sizes() -> None:
    assert set(SLOTS) < set(Slots.model_fields) == set(BUILT_IN)
    for slot, default in Slots():
        assert default.use == "none" or default.use in BUILT_IN[slot]
    expected = {
        "residual": [{"channels": 8}, {"channels": 16}],
        "downsample": [{"channels": 8, "out_channels": 16}, {"channels": 16, "out_channels": 16}],
    }
    assert {slot: list_sizes(slot, (8, 16, 16)) for slot in expected} == expected
    assert list_sizes("downsample", (8,)) == [{"channels": 8, "out_channels": 8}], "of one stage"
    model = ModelSettings(widths=(8, 16), depths=(0, 2))
    assert (list_widths("attention", model), list_widths("downsample", model)) == ((16,), (8, 16))


SUITS = {"PreAct": "residual attention", "Gate": "residual attention", "Square": "", "PoolHead": ""}
SUITS |= {"Blur": "downsample", "DropBranch": "stochastic_depth"}


@pytest.mark.parametrize("name", SUITS)
def test_what_is_worth_trying(name: str) -> None:
    qualname = next(one for one in slot_blocks.LIBRARY if one.endswith(f".{name}"))
    spec = slot_blocks.make_spec(qualname)
    assert {slot for slot in SLOTS if suits(slot, spec)} == set(SUITS[name].split())
    for change in ({"level": "executed"}, {"cases": ()}):
        assert not any(suits(slot, spec.model_copy(update=change)) for slot in SLOTS)


def builds(slot: str, constructor: str, **recorded: str) -> tuple[str, ...]:
    """The arguments to try for a block with such a constructor, of which such arguments worked."""
    image = slot_blocks.IMAGE
    made = {"kit.made.Made": (slot_blocks.TEXTS["Gate"], constructor, recorded, image, image)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_blocks, "LIBRARY", made)
        return list_builds(slot, slot_blocks.make_block("kit.made.Made"), slot_blocks.make_spec("kit.made.Made"))


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
