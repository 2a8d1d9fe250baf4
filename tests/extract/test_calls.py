"""The calls that are printed: they are closed, and `verify` executes them below both forms of a file."""

import json
from pathlib import Path

import pytest

from extract.folder.verify import verify
from extract.model.results import Result, code_columns
from extract.proofs.minimize import lean_columns
from extract.specs.make import print_call
from manifests.records import Block
from tests.builders import extractions
from tests.builders.shown import show_block
from tests.builders.suites import read_files, table

TEXTS = read_files(__file__, "calls.md")
BODY = TEXTS["BODY"]
STOPS = BODY.replace(
    "        return", '        raise NotImplementedError("left out of the lean form: forward")\n        return'
)
OBSERVED = {"parameters": 72, "trainable": 72, "buffers": 0, "layers": {}}


def made(folder: Path, *init: str, lean: str = BODY, trains: bool = True) -> Block:
    source = extractions.source(folder, "beta@1.0")
    calls = {"init": {"args": list(init), "kwargs": {}}, "forward": {"args": [], "kwargs": {"x": "torch.ones(2, 8)"}}}
    head = extractions.code_of("beta@1.0::beta.blocks.Made", source.license, "")
    return extractions.block(
        source,
        "Made",
        level="backward",
        error_kind=None,
        error=None,
        arguments=json.dumps(calls),
        observed=json.dumps(OBSERVED | ({"train_differs": False} if trains else {})),
        **code_columns(head + BODY + "\n# More.\n"),
        **lean_columns(head + lean, (), source.license) | {"lean_error": None},
    )


@table(__file__, "calls.md", "What is printed is closed", globals())
def test_what_is_printed_is_closed(tmp_path: Path, init: str, lines: tuple[str, ...] | None) -> None:
    row = made(tmp_path, init)
    assert print_call(row, row.lean_code) == (() if lines is None else (*lines, "block(x=torch.ones(2, 8))"))


def test_a_block_that_is_not_known_to_run_in_train_mode_is_printed_in_eval_mode(tmp_path: Path) -> None:
    row = made(tmp_path, "8", trains=False)
    assert print_call(row, row.code)[:2] == ("block = Made(8)", "block.eval()")


def test_a_file_without_torch_runs_as_printed(tmp_path: Path) -> None:
    """The call says what it needs: the file and the lines run, where no name is known."""
    text = BODY.replace("import torch\n", "").replace(
        "from torch import nn", "from torch.nn import *\nimport torch.nn as nn"
    )
    row = made(tmp_path, "8", "nn.ReLU", lean=text)
    lines = print_call(row, row.lean_code)
    assert lines == ("import torch", "block = Made(8, nn.ReLU)", "block(x=torch.ones(2, 8))")
    exec("\n".join([row.lean_code or "", *lines]), {"__name__": "printed"})


def written(folder: Path, row: Block) -> Path:
    source = extractions.source(folder, "beta@1.0")
    result = Result(row, ((source.name, "beta/blocks.py"),))
    extractions.write(folder / "out", [result], [source], level="backward")
    return folder / "out"


@table(__file__, "calls.md", "Verify executes what is printed", globals())
def test_verify_executes_what_is_printed(tmp_path: Path, init: str, lean: str, expected: list[bool], says: str) -> None:
    checks = verify(written(tmp_path, made(tmp_path, init, lean=lean)), jobs=1)
    assert all(check.ok for check in checks if check.name != "calls")
    calls = [check for check in checks if check.name == "calls"]
    assert [check.ok for check in calls] == expected
    assert all(says in check.detail for check in calls)


@pytest.mark.parametrize(("lines", "printed"), [(10, "# More."), (3_000, "class Made")])
def test_of_a_long_file_the_lean_form_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: int, printed: str
) -> None:
    row = made(tmp_path, "8")
    row = row.model_copy(update=code_columns((row.code or "") + "# More.\n" * lines))
    show_block(written(tmp_path, row), "Made")
    out = capsys.readouterr().out
    assert ("printed below is its lean form" in out) == (lines > 2_000)
    assert ("# More." in out) == (lines <= 2_000)
    assert printed in out
