"""Candidates: blocks of an extraction folder, told by what they do in the sandbox; outcomes are kept."""

from pathlib import Path

import pytest

from lemur_core.files.errors import UserError
from lemur_core.sandbox import cached
from tests.builders import slot_blocks
from train.compose.candidates import SlotCandidate, candidates, open_library

WIDTHS = (8,)


def names(found: list[SlotCandidate]) -> list[str]:
    """Qualified names of those that fit."""
    return [one.block.partition("::")[2] for one in found if one.fits]


def test_each_kind_is_found_by_what_it_does(folder: Path) -> None:
    found = candidates("downsample", folder, WIDTHS)
    assert names(found) == ["kit.pool.Blur", "kit.pool.Subsample", "other.pool.Blur"]
    assert [one.facts["antialiased"] for one in found] == [True, False, True]
    dropping = candidates("stochastic_depth", folder, WIDTHS)
    assert names(dropping) == ["kit.drop.DropBranch"]
    residual = {one.block.rpartition(".")[2]: one for one in candidates("residual", folder, WIDTHS)}
    assert residual["PreAct"].facts["branch_end"] == "last"
    found = candidates("attention", folder, WIDTHS)
    assert [one.fits for one in found] == sorted((one.fits for one in found), reverse=True)
    fitting = [one.parameters for one in found if one.parameters is not None]
    assert fitting == sorted(fitting)
    tried = {one.block.rpartition(".")[2] for one in found}
    assert {"Gate", "Net"} <= tried
    assert not {"WithNumpy", "OwnDrop"} & tried


def test_a_second_time_nothing_is_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = candidates("downsample", folder, WIDTHS)

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("no sandbox is needed")

    monkeypatch.setattr(cached, "Sandbox", refuse)
    assert candidates("downsample", folder, WIDTHS) == first
    with pytest.raises(AssertionError, match="no sandbox"):
        candidates("downsample", folder, (4, 8))


def test_wrong_questions(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no blocks\.parquet; pass a folder written by `lemur extract"):
        candidates("stem", tmp_path)
    for name in ("blocks.parquet", "specs.jsonl", "required_repos.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "specs.jsonl").write_text("{]\n")
    with pytest.raises(UserError, match="its records cannot be read"):
        open_library(tmp_path)


def test_blocks_are_found_by_the_end_of_their_names(folder: Path) -> None:
    library = open_library(folder)
    for use in ("kit@1.0::kit.gates.Gate", "kit::kit.gates.Gate", "kit.gates.Gate", "gates.Gate", "Gate"):
        found = library.find(use)
        assert found is not None
        assert found.block == "kit@1.0::kit.gates.Gate"
        assert found.code == slot_blocks.make_block("kit.gates.Gate").code
    assert library.find("ates.Gate") is None
    assert library.near("Gait") == ["kit@1.0::kit.gates.Gate"]
    with pytest.raises(UserError, match=r"2 blocks are named 'Blur': kit@1.0::kit.pool.Blur, kit@1.0::other.pool.Blur"):
        library.find("Blur")
    right = SlotCandidate("kit@1::Blur", True, None, "channels=channels", 0, {"antialiased": True, "stride": 1})
    assert right.line() == "fits kit@1::Blur(channels=channels): 0 parameters, antialiased, stride 1"
    wrong = SlotCandidate("kit@1::Post", False, "has no identity shortcut", "dim=channels", None, {})
    assert wrong.line() == "no   kit@1::Post: has no identity shortcut"
