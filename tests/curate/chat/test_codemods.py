"""Faults as text: before and after."""

import ast
import subprocess
import sys

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


def test_what_libcst_does_not_parse_is_left_alone() -> None:
    file = EditedFile("def f(:\n")
    assert not any(faults(file).values())


def test_libcst_is_imported_only_where_conversations_are_made() -> None:
    code = "import sys, curate.cli, curate.run.pipeline, curate.folder.verify; print('libcst' in sys.modules)"
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
