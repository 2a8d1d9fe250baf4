"""What is trained again: networks that learn, and those that only say so."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lemur.synthesis.attempts import confirm as confirming
from lemur.synthesis.attempts.confirm import CONFIRM, confirm
from lemur.synthesis.attempts.messages import ScoreChange
from lemur_core.sandbox import Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox
from tests.builders import synthesis

PRM = {"lr": 0.01, "momentum": 0.9, "transform": "norm_32", "batch": 2}
HONEST = """            self.optimizer.zero_grad()
            loss = self.criterion(self(inputs.to(self.device)), labels.to(self.device))
            loss.backward()
            self.optimizer.step()
"""
LEARNED = {
    "honest": HONEST,
    "slow": HONEST.replace("self.optimizer.step()", "[p.data.sub_(1e-3 * p.grad) for p in self.parameters()]"),
}
CLAIMED = {
    "nothing": "            pass\n",
    "noise": "            [p.data.add_(torch.randn_like(p) * 0.01) for p in self.parameters()]\n",
    "loud noise": "            [p.data.add_(torch.randn_like(p)) for p in self.parameters()]\n",
    "decay": "            [p.data.mul_(0.9) for p in self.parameters()]\n",
    "uphill": HONEST.replace("self.criterion(", "-self.criterion("),
    "other labels": HONEST.replace("labels.to", "labels[torch.randperm(len(labels))].to"),
    "one label": HONEST.replace("labels.to", "(labels * 0).to"),
    "the labels' numbers": "            self.head.bias.data += nn.functional.one_hot(labels, 10).float().sum(0)\n",
}
UNMOVED = "its training does not move its scores of images that it has not seen toward their labels"


@pytest.fixture(scope="module")
def box(curator_cache: Path) -> Iterator[CachedSandbox]:
    with CachedSandbox(entries=[CONFIRM.guest], workers=1) as opened:
        yield opened


def test_who_learns(box: CachedSandbox) -> None:
    codes = {}
    for number, learn in enumerate([*LEARNED.values(), *CLAIMED.values()]):
        code = synthesis.network("SqueezeGate")
        codes[number] = code.replace(HONEST, learn)
        assert codes[number] != code or not number
    codes[99] = synthesis.network("SqueezeGate", use="x = self.block(x) / 0")
    refused = confirm(box, codes, PRM)
    assert refused.keys() == {*range(len(LEARNED), len(LEARNED) + len(CLAIMED)), 99}
    assert {refused[number] for number in refused if number != 99} == {UNMOVED}
    assert refused[99].startswith("not_finite: ")


def test_a_process_has_no_labels_of_unseen_images() -> None:
    """Each run has its own images, seed and labels, and the same ones every time."""
    code = synthesis.network()
    tasks = [confirming._draw(code, run, PRM, 5) for run in (0, 1, 0)]
    assert tasks[0] == tasks[2]
    for (task, labels), (other, others) in ((tasks[0], tasks[1]), (tasks[1], tasks[0])):
        assert sorted(set(labels)) == sorted(set(task.labels))
        assert len(set(labels)) == 5
        assert json.dumps(labels) not in json.dumps([getattr(task, name) for name in task.__slots__])
        assert (task.seed, task.images, labels) != (other.seed, other.images, others)
        assert task.images[:1000] != task.unseen[:1000]


@pytest.mark.parametrize(
    "value", [None, {}, [], {"train": [], "eval": []}, {"train": [[0.0]], "eval": [[0.0] * 10] * 20}]
)
def test_a_report_that_is_made_up_confirms_nothing(value: object) -> None:
    reply = CONFIRM.read(Outcome("0", Status.OK, value))
    _, labels = confirming._draw("", 0, PRM, 5)
    assert not isinstance(reply.answer, ScoreChange) or not confirming._has_learned(reply.answer, labels)


def test_only_scores_that_follow_the_labels_confirm() -> None:
    _, labels = confirming._draw("", 0, PRM, 5)
    used = sorted(set(labels))
    right = tuple(tuple(float(label == column) for column in range(10)) for label in labels)
    turned = tuple(tuple(float(used[used.index(label) - 1] == column) for column in range(10)) for label in labels)
    even = tuple((1.0,) * 10 for _ in labels)
    assert confirming._has_learned(ScoreChange(right, even), labels)
    assert confirming._has_learned(ScoreChange(even, right), labels)
    for wrong in (turned, even, right[::-1], right[1:]):
        assert not confirming._has_learned(ScoreChange(wrong, even), labels)
    assert replace(ScoreChange(right, even), train=turned) == ScoreChange(turned, even)
