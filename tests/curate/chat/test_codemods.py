"""Faults and changes as text: before and after."""

import ast
import re
import subprocess
import sys

import pytest

from curate.chat.change import Change, changes
from curate.chat.codemod import EditedFile
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


def replaced(pairs: dict[str, str]) -> str:
    """The file with these texts replaced, each of which it holds once."""
    text = BEFORE
    for old, new in pairs.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("undefined_name", "nn.MaxPool2d", "nns.MaxPool2d"),
        ("unknown_attribute", "x = self.relu(", "x = self.rel("),
        ("missing_argument", "self.größe(x)", "self.größe()"),
        ("missing_parameter", "forward(self, x)", "forward(self)"),
        ("wrong_size", "nn.Linear(8, 10)", "nn.Linear(16, 10)"),
        ("wrong_dimension", ", 1))", ", 2))"),
        ("missing_import", "import torch\nfrom", "from"),
        ("missing_import", "import torch.nn.functional as F\n", ""),
        ("missing_super", "        super().__init__()\n", ""),
    ],
)
def test_faults(kind: str, old: str, new: str) -> None:
    file = EditedFile(BEFORE)
    found = {file.apply_edits(fault.edits): fault for fault in faults(file)[kind]}
    for code, fault in found.items():
        ast.parse(code)
        pairs = zip(BEFORE.split("\n"), code.split("\n"), strict=False)
        assert next(at for at, (one, other) in enumerate(pairs, 1) if one != other) == fault.line
        if kind in ("undefined_name", "unknown_attribute"):
            wrong, right = fault.right.split("`")[1:4:2]
            assert wrong not in re.findall(r"\w+", BEFORE), "a wrong name is nowhere in the file"
            assert wrong in code
            assert right in BEFORE.split("\n")[fault.line - 1]
    assert replaced({old: new}) in found


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
        kind: [fault.right.split("`")[3] for fault in of_kind] for kind, of_kind in faults(EditedFile(code)).items()
    }
    assert "; ".join(f"{kind}: {', '.join(names)}" for kind, names in found.items() if names) == kind


RELU, TORCH_RELU, F_RELU = "nn.ReLU(inplace=True)", "torch.relu(x)", "F.relu(self.pool(x))"
FUNCTIONAL, SGD, AFTER_SGD = (
    "torch.nn.functional",
    "optim.SGD(",
    "\n            momentum=0.9, weight_decay=1e-4, nesterov=True",
)


@pytest.mark.parametrize(
    ("kind", "new", "lines", "pairs"),
    [
        (
            "activation",
            "GELU",
            (11, 19),
            {RELU: "nn.GELU()", TORCH_RELU: f"{FUNCTIONAL}.gelu(x)", F_RELU: "F.gelu(self.pool(x))"},
        ),
        (
            "activation",
            "SiLU",
            (11, 19),
            {RELU: "nn.SiLU(inplace=True)", TORCH_RELU: f"{FUNCTIONAL}.silu(x)", F_RELU: "F.silu(self.pool(x))"},
        ),
        ("optimizer", "AdamW", (23, 24, 25), {SGD: "optim.AdamW(", AFTER_SGD: " weight_decay=1e-4"}),
        ("dropout", "0.1", (14,), {"p=0.5": "p=0.1"}),
        ("layer", "AvgPool2d", (12,), {"MaxPool2d": "AvgPool2d"}),
        ("layer", "GroupNorm", (13,), {"BatchNorm2d(8": "GroupNorm(1, 8"}),
    ],
)
def test_changes(kind: str, new: str, lines: tuple[int, ...], pairs: dict[str, str]) -> None:
    file = EditedFile(BEFORE)
    (change,) = [change for change in changes(file)[kind] if change.new == new]
    assert file.apply_edits(change.edits) == replaced(pairs)
    assert change.lines == lines


NO_MOMENTUM = "AdamW takes no `momentum`, `nesterov`: what was passed there has no effect any more."
NO_DECAY = "No `weight_decay` is given, and its default changes: {} in {}, {} in {}."


@pytest.mark.parametrize(
    ("call", "new", "expected", "notes"),
    [
        (
            "SGD(p, lr=1, momentum=0.9, nesterov=True)",
            "AdamW",
            "AdamW(p, lr=1)",
            (NO_MOMENTUM, NO_DECAY.format(0, "SGD", 0.01, "AdamW")),
        ),
        ("SGD(p, lr=1, weight_decay=0.1, )", "AdamW", "AdamW(p, lr=1, weight_decay=0.1, )", ()),
        ("SGD(p, lr=1)", "Adam", "Adam(p, lr=1)", ()),
        ("AdamW(p, lr=1)", "SGD", "SGD(p, lr=1)", (NO_DECAY.format(0.01, "AdamW", 0, "SGD"),)),
        ("SGD(momentum=0.9, params=p)", "AdamW", None, ()),
        ("SGD(p, 1, 0.9)", "AdamW", None, ()),
        ("SGD(p, **more)", "AdamW", None, ()),
    ],
)
def test_a_new_optimizer_comes_with_what_it_changes_beside(
    call: str, new: str, expected: str | None, notes: tuple[str, ...]
) -> None:
    file = EditedFile(f"x = torch.optim.{call}\n")
    found = [change for change in changes(file)["optimizer"] if change.new == new]
    assert [(file.apply_edits(change.edits), change.notes) for change in found] == (
        [] if expected is None else [(f"x = torch.optim.{expected}\n", notes)]
    )


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
            for change in changes(EditedFile(code))[kind]
            if kind == "dropout" or change.old in ("ReLU", "SGD", "MaxPool2d", "BatchNorm2d")
        ]

    assert named(BEFORE)
    assert not named(f"{BEFORE}{added}")


def test_what_libcst_does_not_parse_is_left_alone() -> None:
    file = EditedFile("def f(:\n")
    assert not any([*faults(file).values(), *changes(file).values()])


def test_libcst_is_imported_only_where_conversations_are_made() -> None:
    code = "import sys, curate.cli, curate.run.pipeline, curate.folder.verify; print('libcst' in sys.modules)"
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
