"""The checks of each slot: a right filler is accepted, each wrong kind refused with its reason; run here, unconfined."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.builders.slot_blocks import HEAD, TEXTS
from tests.builders.suites import table
from train.compose.assemble import support_text
from train.compose.probe_guest import probe_filler, probe_network
from train.model.slots import BUILT_IN, SLOTS, list_sizes

SUPPORT = support_text(BUILT_IN["norm"]["batch_norm"], BUILT_IN["activation"]["relu"])


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe writes the files that it executes into the working folder."""
    monkeypatch.chdir(tmp_path)


def ask(slot: str, text: str, *builds: str, widths: tuple[int, ...] = (8, 16)) -> dict[str, Any]:
    target = text.partition("class ")[2].partition("(")[0] if "class " in text else text
    code = HEAD + text if "class " in text else ""
    asked = {"slot": slot, "code": code, "target": target, "builds": list(builds), "support": SUPPORT}
    with warnings.catch_warnings():
        return probe_filler({**asked, "sizes": list_sizes(slot, widths)})


@table(__file__, "probe.md", "Right", globals())
def test_right(slot: str, text: str, build: str, facts: dict[str, Any]) -> None:
    assert slot in SLOTS
    answer = ask(slot, text, build)
    assert answer.get("reason") is None
    assert answer["facts"] == facts
    assert answer["build"] == build


WRONG = [
    ("residual", TEXTS["PostAct"], "channels, channels", "an activation follows the addition"),
    ("residual", TEXTS["NoEnd"], "channels", "its shortcut is not the identity"),
    ("residual", TEXTS["TwoBranches"], "channels", "zeroing the output of no single child"),
    ("residual", TEXTS["Unused"], "channels", "no finite gradient reaches its parameter spare"),
    ("residual", TEXTS["Stem"], "channels, 5", "gives 4×5×16×16 for 4×8×16×16, not 4×8×16×16"),
    ("residual", TEXTS["PreAct"], "no_such=channels", "cannot be constructed as PreAct(no_such=channels): TypeError"),
    ("residual", TEXTS["PreAct"], "16", "does not run on 4×8×16×16 in eval mode: RuntimeError"),
    ("attention", TEXTS["FullPrecision"], "channels", "bfloat16 and channels_last: AssertionError: float32 alone"),
    ("attention", TEXTS["FixedSize"], "channels", "does not run on 4×8×12×8 in eval mode"),
    ("attention", TEXTS["Subsample"], "", "gives 4×8×8×8 for 4×8×16×16"),
    ("attention", "nn.SiLU", "", "attends to nothing"),
    ("attention", "nn.Conv2d", "channels, channels, 3, padding=1", "attends to nothing"),
    ("attention", TEXTS["Scale"], "channels", "attends to nothing"),
    ("attention", "nn.GroupNorm", "1, channels", "normalises"),
    ("attention", TEXTS["SwishNorm"], "channels", "normalises: 512 times its input gives the same output as 64 times"),
    ("downsample", TEXTS["Widen"], "channels", "gives 4×24×8×8 for 4×8×16×16, not 4×8×8×8"),
    ("downsample", TEXTS["Gate"], "channels", "gives 4×8×16×16 for 4×8×16×16, not 4×8×8×8"),
    ("downsample", "nn.Flatten", "", "gives 4×2048 for 4×8×16×16, not"),
    ("stochastic_depth", TEXTS["Unscaled"], "rate", "does not keep the mean: samples are scaled by 1 at rate 0.5"),
    ("stochastic_depth", TEXTS["WholeBatch"], "rate", "at rate 0.5, not samples by themselves"),
    ("stochastic_depth", TEXTS["Elements"], "rate", "drops parts of a sample"),
    ("stochastic_depth", TEXTS["DropBranch"], "0.0", "drops nothing at rate 0.5"),
    ("stochastic_depth", "nn.ReLU", "", "is not the identity in eval mode"),
]


@pytest.mark.parametrize(("slot", "text", "build", "reason"), WRONG)
def test_wrong(slot: str, text: str, build: str, reason: str) -> None:
    answer = ask(slot, text, build)
    assert not answer["fits"]
    assert reason in answer["reason"]


def test_what_else_is_told() -> None:
    of_factories = ask("residual", TEXTS["PreAct"], "channels, norm_layer=make_norm_activation")
    assert of_factories["facts"]["branch_end"] == "last"
    broken = ask("attention", "class Broken(nn.Nothing):\n    pass\n", "channels")
    assert broken["reason"].startswith("its file cannot be executed: AttributeError")
    assert ask("attention", TEXTS["Gate"], "8", widths=(8,))["fits"]
    assert "4×16×16×16" in ask("attention", TEXTS["Gate"], "8", widths=(8, 16))["reason"]
    fits = ask("attention", TEXTS["Gate"], "no_such=1", "16", "channels", "channels, reduction=2")
    assert fits["build"] == "channels"
    fails = ask("attention", TEXTS["Gate"], "no_such=channels", "channels - 1", "16", "also_not=channels")
    assert fails["build"] == "channels - 1"
    assert "does not run" in fails["reason"]
    assert {slot for slot, *_ in WRONG} == set(SLOTS)


def test_a_network_that_does_not_learn_is_told() -> None:
    code = HEAD + (
        "class Net(nn.Sequential):\n"
        "    def __init__(self, in_shape, out_shape, prm, device):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(3072, out_shape[0]))\n\n"
        "    def train_setup(self, prm):\n        self.rate = prm['lr']\n\n"
        "    def learn(self, train_data):\n        raise ArithmeticError('too steep')\n"
    )
    with warnings.catch_warnings():
        answer = probe_network({"code": code, "prm": {"lr": 0.1}})
    assert not answer["fits"]
    said = r"ArithmeticError: too steep \(line \d+: .*; in learn\(train_data\), epoch 1, batches 4x3x32x32\)"
    assert re.fullmatch(said, answer["reason"])
