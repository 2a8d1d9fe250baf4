"""Faults and changes as text: before and after."""

import ast
import difflib

import pytest

from curate.chat.changes import changes
from curate.chat.faults import faults
from curate.chat.text import Source

BEFORE = """import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.größe = nn.Conv2d(3, 8, 3); self.relu = nn.ReLU(inplace=True)  # ä
        self.pool = nn.MaxPool2d(2, stride=2)
        self.bn = nn.BatchNorm2d(8, eps=1e-4)
        self.drop = nn.Dropout(p=0.5)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.relu(self.bn(self.größe(x)))
        x = torch.relu(x) + F.relu(self.pool(x))
        return self.head(torch.flatten(self.drop(x).mean((2, 3)), 1))

    def train_setup(self, prm):
        self.optimizer = torch.optim.SGD(
            self.parameters(), lr=prm["lr"],
            momentum=0.9, weight_decay=1e-4, nesterov=True)
"""


def changed_lines(before: str, after: str) -> list[str]:
    """Lines of the difference, without their indentation."""
    found = difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=0)
    return [line[0] + line[1:].strip() for line in found if line[:2] not in ("--", "++", "@@")]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("undefined_name", ["-self.head = nn.Linear(8, 10)", "+self.head = nns.Linear(8, 10)"]),
        ("unknown_attribute", ["-x = self.relu(self.bn(self.größe(x)))", "+x = self.re_lu(self.bn(self.größe(x)))"]),
        ("missing_argument", ["-x = self.relu(self.bn(self.größe(x)))", "+x = self.relu(self.bn(self.größe()))"]),
        ("missing_parameter", ["-def forward(self, x):", "+def forward(self):"]),
        ("wrong_size", ["-self.head = nn.Linear(8, 10)", "+self.head = nn.Linear(16, 10)"]),
        (
            "wrong_dimension",
            [
                "-return self.head(torch.flatten(self.drop(x).mean((2, 3)), 1))",
                "+return self.head(torch.flatten(self.drop(x).mean((2, 3)), 2))",
            ],
        ),
        ("missing_import", ["-import torch"]),
        ("missing_super", ["-super().__init__()"]),
    ],
)
def test_faults(kind: str, expected: list[str]) -> None:
    source = Source(BEFORE)
    found = {}
    for fault in faults(source)[kind]:
        after = source.edit([fault.edit])
        lines = changed_lines(BEFORE, after)
        assert source.lines[fault.line - 1].strip() == lines[0].removeprefix("-"), "the line that is told"
        found[tuple(lines)] = fault
    assert tuple(expected) in found, list(found)
    ast.parse(source.edit([found[tuple(expected)].edit]))


def test_a_wrong_name_is_nowhere_in_the_file() -> None:
    source = Source(BEFORE)
    for fault in [*faults(source)["undefined_name"], *faults(source)["unknown_attribute"]]:
        assert fault.edit.new.removeprefix("self.") not in source.names
        assert f"`{fault.edit.new.removeprefix('self.')}`" in fault.right
        assert f"`{source.text[fault.edit.start : fault.edit.end]}`" in fault.right


@pytest.mark.parametrize(
    ("kind", "new", "expected"),
    [
        (
            "activation",
            "GELU",
            [
                "-self.größe = nn.Conv2d(3, 8, 3); self.relu = nn.ReLU(inplace=True)  # ä",
                "+self.größe = nn.Conv2d(3, 8, 3); self.relu = nn.GELU()  # ä",
                "-x = torch.relu(x) + F.relu(self.pool(x))",
                "+x = torch.nn.functional.gelu(x) + F.gelu(self.pool(x))",
            ],
        ),
        (
            "activation",
            "SiLU",
            [
                "-self.größe = nn.Conv2d(3, 8, 3); self.relu = nn.ReLU(inplace=True)  # ä",
                "+self.größe = nn.Conv2d(3, 8, 3); self.relu = nn.SiLU(inplace=True)  # ä",
                "-x = torch.relu(x) + F.relu(self.pool(x))",
                "+x = torch.nn.functional.silu(x) + F.silu(self.pool(x))",
            ],
        ),
        (
            "optimizer",
            "AdamW",
            [
                "-self.optimizer = torch.optim.SGD(",
                '-self.parameters(), lr=prm["lr"],',
                "-momentum=0.9, weight_decay=1e-4, nesterov=True)",
                "+self.optimizer = torch.optim.AdamW(",
                '+self.parameters(), lr=prm["lr"], weight_decay=1e-4)',
            ],
        ),
        ("dropout", "0.1", ["-self.drop = nn.Dropout(p=0.5)", "+self.drop = nn.Dropout(p=0.1)"]),
        ("layer", "AvgPool2d", ["-self.pool = nn.MaxPool2d(2, stride=2)", "+self.pool = nn.AvgPool2d(2, stride=2)"]),
        ("layer", "GroupNorm", ["-self.bn = nn.BatchNorm2d(8, eps=1e-4)", "+self.bn = nn.GroupNorm(1, 8, eps=1e-4)"]),
    ],
)
def test_changes(kind: str, new: str, expected: list[str]) -> None:
    source = Source(BEFORE)
    (way,) = [way for way in changes(source)[kind] if way.new == new]
    assert changed_lines(BEFORE, source.edit(way.edits)) == expected


@pytest.mark.parametrize(
    ("call", "new", "notes"),
    [
        (
            "SGD(p, lr=1, momentum=0.9, nesterov=True)",
            "AdamW",
            (
                "AdamW takes no `momentum`, `nesterov`: what was passed there has no effect any more.",
                "No `weight_decay` is given, and its default changes: 0 in SGD, 0.01 in AdamW.",
            ),
        ),
        ("SGD(p, lr=1, weight_decay=0.1)", "AdamW", ()),
        ("SGD(p, lr=1)", "Adam", ()),
        (
            "AdamW(p, lr=1)",
            "SGD",
            ("No `weight_decay` is given, and its default changes: 0.01 in AdamW, 0 in SGD.",),
        ),
    ],
)
def test_a_new_optimizer_comes_with_what_it_changes_beside(call: str, new: str, notes: tuple[str, ...]) -> None:
    (way,) = [way for way in changes(Source(f"x = torch.optim.{call}\n"))["optimizer"] if way.new == new]
    assert way.notes == notes


@pytest.mark.parametrize(
    ("kind", "added"),
    [
        ("activation", "act = nn.ReLU\n"),  # a reference that would stay
        ("activation", "from torch.nn import ReLU\n"),
        ("activation", "def f(x): return x.relu()\n"),
        ("optimizer", "from torch.optim import SGD\n"),
        ("dropout", "rate = 0.1; layer = nn.Dropout(rate)\n"),
    ],
)
def test_what_cannot_be_changed_everywhere_is_not_changed_at_all(kind: str, added: str) -> None:
    assert kind in changes(Source(BEFORE))
    ways = changes(Source(f"{BEFORE}{added}")).get(kind, [])
    assert not [way for way in ways if way.old in ("ReLU", "SGD") or kind == "dropout"]
