"""Faults and changes as text: before and after."""

import ast
import difflib
import subprocess
import sys

import pytest

from curate.chat.change import Change, changes
from curate.chat.codemod import SourceFile
from curate.chat.repair import faults

BEFORE = """import torch
from torch import nn
# of functions
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        # first of all
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
        ("undefined_name", ["-self.pool = nn.MaxPool2d(2, stride=2)", "+self.pool = nns.MaxPool2d(2, stride=2)"]),
        ("unknown_attribute", ["-x = self.relu(self.bn(self.größe(x)))", "+x = self.rel(self.bn(self.größe(x)))"]),
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
        ("missing_import", ["-import torch.nn.functional as F"]),
        ("missing_super", ["-super().__init__()"]),
    ],
)
def test_faults(kind: str, expected: list[str]) -> None:
    file = SourceFile(BEFORE)
    found = {}
    for fault in faults(file)[kind]:
        after = file.edited(fault.edits)
        lines = changed_lines(BEFORE, after)
        assert BEFORE.split("\n")[fault.line - 1].strip() == lines[0].removeprefix("-"), "the line that is stated"
        ast.parse(after)
        found[tuple(lines)] = fault
    assert tuple(expected) in found, list(found)


def test_a_wrong_name_is_nowhere_in_the_file() -> None:
    file = SourceFile(BEFORE)
    found = faults(file)
    for fault in [*found["undefined_name"], *found["unknown_attribute"]]:
        wrong = fault.right.split("`")[1]
        assert wrong not in BEFORE.replace(".", " ").replace("(", " ").split()
        assert wrong in file.edited(fault.edits)
        assert fault.right.split("`")[3] in BEFORE.split("\n")[fault.line - 1]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("assert x.dim() == 4, f'{x.shape}'", "undefined_name: x"),
        ("import math", ""),
        ("global x", ""),
        ("y = dict(x=1)", "undefined_name: dict"),
        ("self.x = 1", ""),
        ("self.act(x=1)", "unknown_attribute: self.act"),
        ("self.act(*self.xs)", "unknown_attribute: self.act, self.xs"),
        ("y = 'x'.split()[-1].flatten(True)", ""),
    ],
)
def test_where_names_and_arguments_go_wrong(line: str, kind: str) -> None:
    code = f"class Net:\n    def forward(self, x, y):\n        {line}\n\n    def other(self):\n        {line}\n"
    found = {
        kind: [fault.right.split("`")[3] for fault in of_kind] for kind, of_kind in faults(SourceFile(code)).items()
    }
    assert "; ".join(f"{kind}: {', '.join(names)}" for kind, names in found.items() if names) == kind


@pytest.mark.parametrize(
    ("kind", "new", "lines", "expected"),
    [
        (
            "activation",
            "GELU",
            (11, 19),
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
            (11, 19),
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
            (23, 24, 25),
            [
                "-self.optimizer = torch.optim.SGD(",
                '-self.parameters(), lr=prm["lr"],',
                "-momentum=0.9, weight_decay=1e-4, nesterov=True)",
                "+self.optimizer = torch.optim.AdamW(",
                '+self.parameters(), lr=prm["lr"], weight_decay=1e-4)',
            ],
        ),
        ("dropout", "0.1", (14,), ["-self.drop = nn.Dropout(p=0.5)", "+self.drop = nn.Dropout(p=0.1)"]),
        (
            "layer",
            "AvgPool2d",
            (12,),
            ["-self.pool = nn.MaxPool2d(2, stride=2)", "+self.pool = nn.AvgPool2d(2, stride=2)"],
        ),
        (
            "layer",
            "GroupNorm",
            (13,),
            ["-self.bn = nn.BatchNorm2d(8, eps=1e-4)", "+self.bn = nn.GroupNorm(1, 8, eps=1e-4)"],
        ),
    ],
)
def test_changes(kind: str, new: str, lines: tuple[int, ...], expected: list[str]) -> None:
    file = SourceFile(BEFORE)
    (change,) = [change for change in changes(file)[kind] if change.new == new]
    assert changed_lines(BEFORE, file.edited(change.edits)) == expected
    assert change.lines == lines


@pytest.mark.parametrize(
    ("call", "new", "expected", "notes"),
    [
        (
            "SGD(p, lr=1, momentum=0.9, nesterov=True)",
            "AdamW",
            "AdamW(p, lr=1)",
            (
                "AdamW takes no `momentum`, `nesterov`: what was passed there has no effect any more.",
                "No `weight_decay` is given, and its default changes: 0 in SGD, 0.01 in AdamW.",
            ),
        ),
        ("SGD(p, lr=1, weight_decay=0.1, )", "AdamW", "AdamW(p, lr=1, weight_decay=0.1, )", ()),
        ("SGD(p, lr=1)", "Adam", "Adam(p, lr=1)", ()),
        (
            "AdamW(p, lr=1)",
            "SGD",
            "SGD(p, lr=1)",
            ("No `weight_decay` is given, and its default changes: 0.01 in AdamW, 0 in SGD.",),
        ),
        ("SGD(momentum=0.9, params=p)", "AdamW", None, ()),
        ("SGD(p, 1, 0.9)", "AdamW", None, ()),
        ("SGD(p, **more)", "AdamW", None, ()),
    ],
)
def test_a_new_optimizer_comes_with_what_it_changes_beside(
    call: str, new: str, expected: str | None, notes: tuple[str, ...]
) -> None:
    file = SourceFile(f"x = torch.optim.{call}\n")
    found = [change for change in changes(file)["optimizer"] if change.new == new]
    assert [file.edited(change.edits) for change in found] == (
        [] if expected is None else [f"x = torch.optim.{expected}\n"]
    )
    assert [change.notes for change in found] == ([] if expected is None else [notes])


@pytest.mark.parametrize(
    ("kind", "added"),
    [
        ("activation", "act = nn.ReLU\n"),  # a reference that would stay
        ("activation", "from torch.nn import ReLU\n"),
        ("activation", "def f(x): return x.relu()\n"),
        ("optimizer", "from torch.optim import SGD\n"),
        ("dropout", "rate = 0.1; layer = nn.Dropout(rate)\n"),
        ("layer", "pool = nn.MaxPool2d(2, return_indices=True); norm = nn.BatchNorm2d(num_features=8)\n"),
    ],
)
def test_what_cannot_be_changed_everywhere_is_not_changed_at_all(kind: str, added: str) -> None:
    def named(code: str) -> list[Change]:
        return [
            change
            for change in changes(SourceFile(code))[kind]
            if kind == "dropout" or change.old in ("ReLU", "SGD", "MaxPool2d", "BatchNorm2d")
        ]

    assert named(BEFORE)
    assert not named(f"{BEFORE}{added}")


def test_what_libcst_does_not_parse_is_left_alone() -> None:
    file = SourceFile("def f(:\n")
    assert not any([*faults(file).values(), *changes(file).values()])


def test_libcst_is_imported_only_where_conversations_are_made() -> None:
    told = "import sys, curate.cli, curate.pipeline, curate.verify; print('libcst' in sys.modules)"
    found = subprocess.run([sys.executable, "-P", "-c", told], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
