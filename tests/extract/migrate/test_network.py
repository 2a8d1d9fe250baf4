"""Blocks put into networks, for real: observed, fitted, written and proved in the sandbox."""

import ast
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extract.migrate.network import (
    MigrationError,
    TargetNetwork,
    candidates,
    describe_proof,
    migrate,
    observe,
    open_box,
)
from extract.migrate.source_block import SourceBlock
from extract.specs.make import StatedArguments
from manifests.provenance import find_inlined_blocks
from manifests.records import SpecArgument
from tests.builders import extractions
from tests.builders.suites import read_files, table

TEXTS = read_files(__file__, "network.md")

TINY = (Path(__file__).parents[2] / "fixtures" / "train" / "tiny_net.py").read_text(encoding="utf-8")

#: Its width is no argument: a layer that changes channels has to help.
FIXED = (
    TEXTS["GATE"]
    .replace("(self, channels, groups=1)", "(self)")
    .replace("channels", "8")
    .replace("groups=groups", "groups=1")
)
IDLE = TEXTS["GATE"].replace(
    "x * torch.sigmoid(self.fc(x.mean((2, 3), keepdim=True)))", "x + self.fc(x.detach()).detach() * 0"
)


SOURCE = SimpleNamespace(name="a@1", license="MIT", digest="0" * 64, files=[SimpleNamespace(blob="0" * 40)])


def source_block(
    code: str, name: str = "Gate", init: tuple[str, ...] = ("8",), out: tuple[int, ...] = (2, 8, 6, 6), **changes: Any
) -> SourceBlock:
    row = extractions.block(SOURCE, name)
    parameters = (SpecArgument(name="channels", kind="positional"),)
    shapes = (((2, 8, 6, 6), out),)
    return SourceBlock(
        row,
        code,
        "0" * 64,
        changes.get("license", "MIT"),
        False,
        StatedArguments(init),
        parameters,
        "N×C×H×W",
        shapes,
        72,
    )


@pytest.fixture(scope="module")
def move() -> Any:
    with open_box() as box:

        def run(
            given: SourceBlock, target_network: str = TINY, point: str | None = None, prm: dict[str, Any] | None = None
        ) -> Any:
            return migrate(
                given,
                TargetNetwork(
                    "tiny.py",
                    target_network,
                    {"lr": 0.1, "momentum": 0.9, "dropout": 0.1} | (prm or {}),
                    (2, 3, 32, 32),
                ),
                box,
                site=point,
            )

        run.box = box  # type: ignore[attr-defined]
        yield run


Move = Callable[..., Any]


def test_a_block_is_put_after_a_submodule_and_all_of_it_is_proved(move: Move) -> None:
    moved = move(source_block(TEXTS["GATE"]), point="after:features.4")
    assert "self.features[4] = nn.Sequential(self.features[4], Gate(32))" in moved.text
    assert moved.proof.proved == ["builds", "runs", "shape", "gradients", "learns", "leads"]
    assert moved.proof.moved == moved.proof.parameters == 2
    assert "gradients reach all 2 parameters" in describe_proof(moved)
    assert set(TINY.splitlines()) <= set(moved.text.splitlines())


def test_the_file_says_what_it_holds(move: Move) -> None:
    text = move(source_block(TEXTS["GATE"], license="CC-BY-NC-4.0"), point="after:features.4").text
    (block,) = find_inlined_blocks(text)
    assert (block.slot, block.block, block.license) == ("features.4", "a@1::a.blocks.Gate", "CC-BY-NC-4.0")
    assert text.startswith("# tiny.py with Gate of ")
    assert "# The license is not known to permit redistribution of changed copies: for local use.\n" in text
    assert "# Changed: nothing.\n" in text
    ast.parse(text)


def test_a_submodule_is_replaced_by_a_block_of_its_widths(move: Move) -> None:
    moved = move(source_block(TEXTS["STRIDED"], "Strided", ("8", "16"), (2, 16, 3, 3)))
    assert moved.site.name.startswith("replace:features.")
    assert moved.site.place.kind == "Conv2d"
    assert "Strided(16, 32)" in moved.text or "Strided(32, 64)" in moved.text or "Strided(3, 16)" in moved.text


def test_a_block_of_fixed_width_gets_layers_that_change_channels(move: Move) -> None:
    moved = move(source_block(FIXED, init=()), point="after:features.4")
    assert "nn.Sequential(self.features[4], nn.Conv2d(32, 8, 1), Gate(), nn.Conv2d(8, 32, 1))" in moved.text


def test_a_block_of_tokens_is_handed_maps_as_tokens(move: Move) -> None:
    given = replace(
        source_block(TEXTS["TOKENS"], "Tokens", ("6", "3")), layout="N×L×C", cases=(((2, 5, 6), (2, 5, 6)),)
    )
    moved = move(given, point="after:features.4")
    made = "OnTokens(nn.Linear(32, 6), Tokens(6, 3), nn.Linear(6, 32))"  # 32 are not to be divided by 3 heads
    assert f"self.features[4] = nn.Sequential(self.features[4], {made})" in moved.text
    assert moved.text.index("class Tokens") < moved.text.index("class OnTokens") < moved.text.index("class Net")


def test_a_block_with_the_channels_last_is_handed_maps_so(move: Move) -> None:
    given = replace(
        source_block(TEXTS["LAST"], "Last", ("6",)), layout="N×H×W×C", cases=(((2, 5, 4, 6), (2, 5, 4, 6)),)
    )
    moved = move(given, point="replace:features.4")
    assert "self.features[4] = OnChannelsLast(Last(32))" in moved.text


def test_channels_may_be_in_the_other_place_where_shapes_do_not_tell(move: Move) -> None:
    given = replace(source_block(TEXTS["LAST"], "Last", ("6",)), cases=(((2, 6, 4, 6), (2, 6, 4, 6)),))
    assert given.axis == 1
    assert "OnChannelsLast(Last(32))" in move(given, point="replace:features.4").text


def test_what_does_not_fit_has_a_reason_with_shapes(move: Move) -> None:
    target_network = TargetNetwork("tiny.py", TINY, {"lr": 0.1, "momentum": 0.9, "dropout": 0.1}, (2, 3, 32, 32))
    points = {
        one.name: one for one in candidates(source_block(TEXTS["GATE"]), observe(target_network, move.box), move.box)
    }
    assert points["after:features.4"].filling is not None
    assert points["after:classifier"].reason == "hands on 2 dimensions, and the block takes 4: 2x8x6x6"
    assert "makes 2x3x32x32 of 2x3x32x32, and 2x16x16x16 is wanted" in points["replace:features.0"].reason


RANDOM = TINY.replace(
    "widths = (in_shape[1], 16, 32, 64)", "import random; widths = (in_shape[1], *random.sample(range(16, 90), 3))"
)


def test_a_width_that_is_drawn_at_random_is_no_site(move: Move) -> None:
    with pytest.raises(MigrationError, match="its width is not fixed") as failure:
        move(source_block(TEXTS["GATE"]), RANDOM, point="after:features.4")
    assert failure.value.stage == "site"


@table(__file__, "network.md", "A step that fails is named in one line", globals())
def test_a_step_that_fails_is_named_in_one_line(
    move: Move, code: str, target_network: str, stage: str, said: str
) -> None:
    with pytest.raises(MigrationError) as failure:
        move(source_block(code), target_network, point="after:features.4")
    assert failure.value.stage == stage
    assert said in str(failure.value)
    assert "\n" not in str(failure.value)


def test_an_unknown_site_names_some(move: Move) -> None:
    with pytest.raises(MigrationError, match=r"no such insertion point; `--list` shows all, the first are features\.0"):
        move(source_block(TEXTS["GATE"]), point="nowhere")


def test_the_next_site_is_tried_and_the_first_one_told(move: Move) -> None:
    """After the middle one, the network refuses a block; another one it takes."""
    target_network = TINY.replace("x):\n", "x):\n        assert 'Gate' not in str(self.features[6:9])\n", 1)
    moved = move(source_block(TEXTS["GATE"]), target_network)
    assert moved.failed
    assert all("AssertionError" in why for _, why in moved.failed)


def test_the_same_input_gives_the_same_bytes(move: Move) -> None:
    assert move(source_block(TEXTS["GATE"])).text == move(source_block(TEXTS["GATE"])).text
    assert json.dumps(asdict(move(source_block(TEXTS["GATE"])).proof))
