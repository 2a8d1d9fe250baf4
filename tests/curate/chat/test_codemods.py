"""Faults and changes as text: before and after."""

import ast
import subprocess
import sys

from curate.chat.change import Change, changes
from curate.chat.codemod import EditedFile
from curate.chat.repair import faults
from tests.builders.suites import read_files, table

TEXTS = read_files(__file__, "codemods.md")
BEFORE = TEXTS["BEFORE"]


def replaced(pairs: dict[str, str]) -> str:
    """The file with these texts replaced, each of which it holds once."""
    text = BEFORE
    for old, new in pairs.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@table(__file__, "codemods.md", "Faults", globals())
def test_faults(kind: str, old: str, new: str) -> None:
    file = EditedFile(BEFORE)
    found = {file.apply_edits(fault.edits): fault for fault in faults(file)[kind]}
    for code, fault in found.items():
        ast.parse(code)
        pairs = zip(BEFORE.split("\n"), code.split("\n"), strict=False)
        assert next(at for at, (one, other) in enumerate(pairs, 1) if one != other) == fault.line
        if kind == "wrong_attribute":
            wrong, right = fault.right.split("`")[1:4:2]
            assert wrong not in BEFORE, "a wrong name is nowhere in the file"
            assert wrong in code
            assert right in BEFORE.split("\n")[fault.line - 1]
    assert replaced({old: new}) in found


@table(__file__, "codemods.md", "Where names and arguments go wrong", globals())
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


@table(__file__, "codemods.md", "Changes", globals())
def test_changes(kind: str, new: str, lines: tuple[int, ...], pairs: dict[str, str]) -> None:
    file = EditedFile(BEFORE)
    (change,) = [change for change in changes(file)[kind] if change.new == new]
    assert file.apply_edits(change.edits) == replaced(pairs)
    assert change.lines == lines


NO_MOMENTUM = "AdamW takes no `momentum`, `nesterov`: what was passed there has no effect any more."
NO_DECAY = "No `weight_decay` is given, and its default changes: {} in {}, {} in {}."


@table(__file__, "codemods.md", "A new optimizer comes with what it changes beside", globals())
def test_a_new_optimizer_comes_with_what_it_changes_beside(
    call: str, new: str, expected: str | None, notes: tuple[str, ...]
) -> None:
    file = EditedFile(f"x = torch.optim.{call}\n")
    found = [change for change in changes(file)["optimizer"] if change.new == new]
    assert [(file.apply_edits(change.edits), change.notes) for change in found] == (
        [] if expected is None else [(f"x = torch.optim.{expected}\n", notes)]
    )


@table(__file__, "codemods.md", "What cannot be changed everywhere is not changed at all", globals())
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
