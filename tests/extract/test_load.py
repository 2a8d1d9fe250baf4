"""`load_block`: the class of a block, from its own file and no other."""

import inspect
import json
import pickle
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import extract
from extract.blocks import load_block
from extract.results import code_columns
from lemur_core.files.errors import UserError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "extract"
made = SimpleNamespace(**runpy.run_path(str(FIXTURES / "results.py")))
blocks = SimpleNamespace(**runpy.run_path(str(FIXTURES / "blocks.py")))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("load")
    source = made.source(base)
    results = made.results([source])
    results.append(made.Result(made.block(source, "Squeeze", **code_columns(blocks.SQUEEZE))))
    results.append(made.Result(made.block(source, "Needs", **code_columns("import not_there_at_all\n"))))
    results.append(made.Result(made.block(source, "Raises", **code_columns("raise KeyError('mine')\n"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("extract.report.draw_figures", lambda *given: {})
        made.write(base / "out", results, [source])
    return base / "out"


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "a folder"))


def test_a_class_that_works(folder: Path) -> None:
    import torch

    assert extract.load_block is load_block
    before = sorted(folder.rglob("*"))
    squeeze = load_block(str(folder), "alpha@1.0::alpha.blocks.Squeeze")
    assert squeeze(16)(torch.ones(2, 16, 4, 4)).shape == (2, 16, 4, 4)
    assert load_block(folder, "alpha::Squeeze") is squeeze
    assert inspect.getsource(squeeze).startswith("class Squeeze")
    assert pickle.loads(pickle.dumps(squeeze)) is squeeze
    assert sorted(folder.rglob("*")) == before, "no bytecode is left in the folder"


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("Atention", "near names: Attention"),
        ("Native", r"has no code \(native_op: "),
        ("Needs", "No module named 'not_there_at_all'; install it"),
        ("Scale", "its file defines no class Scale"),
    ],
)
def test_what_cannot_be_loaded(folder: Path, block: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_block(folder, block)


def test_what_a_file_raises_is_seen_and_nothing_stays(folder: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(KeyError, match="mine"):
        load_block(folder, "Raises")
    assert not [name for name in set(sys.modules) - before if name.startswith("lemur_block")]


def test_a_file_that_was_changed_is_not_executed(folder: Path) -> None:
    path = folder / "blocks" / "alpha@1.0" / "alpha.blocks.Squeeze.py"
    path.write_text("raise SystemExit('executed')\n")
    with pytest.raises(UserError, match="is not the code of alpha@1"):
        load_block(folder, "Squeeze")
    path.unlink()
    with pytest.raises(UserError, match="run `lemur verify"):
        load_block(folder, "Squeeze")


def test_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({}))
    with pytest.raises(UserError):
        load_block(tmp_path, "Any")
