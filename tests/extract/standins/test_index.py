"""The index names real functions, and every file can stand alone in an emitted file."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from extract import standins

NATIVE = Path(standins.__file__).parent / "native"
FILES = sorted(path for path in NATIVE.glob("*.py") if path.name != "__init__.py")
ENTRIES = [(name, entry) for index in (standins.NATIVE_OPS, standins.TORCHVISION_OPS) for name, entry in index.items()]
ALLOWED = {"math", "torch", "torchvision"}


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "entry"), ENTRIES, ids=[f"{entry.file}:{name}" for name, entry in ENTRIES])
def test_entry_names_a_documented_function(name, entry):
    found = [node for node in tree_of(NATIVE.parent / entry.file).body if getattr(node, "name", "") == entry.function]
    assert len(found) == 1
    assert ast.get_docstring(found[0])
    assert entry.note


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_is_self_contained(path):
    tree = tree_of(path)
    for node in ast.walk(tree):
        assert not isinstance(node, ast.ImportFrom), "plain imports only: they are merged into the emitted file"
        for name in node.names if isinstance(node, ast.Import) else []:
            assert name.asname is None
            assert name.name in ALLOWED
    body = tree.body[1:]  # after the docstring
    assert ast.get_docstring(tree)
    assert {type(node) for node in body} <= {ast.Import, ast.FunctionDef}
    listed = {entry.function for _, entry in ENTRIES if entry.file == f"native/{path.name}"}
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    assert {name for name in defined if not name.startswith("_")} == listed


def test_no_undefined_names():
    out = subprocess.run([sys.executable, "-m", "pyflakes", *map(str, FILES)], capture_output=True, text=True)
    assert out.stdout + out.stderr == ""


def test_names_differ_between_files():
    """Any two files of the native index can be put into one emitted file."""
    seen = {}
    for path in FILES:
        if path.stem == "torchvision_ops":
            continue
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef):
                assert seen.setdefault(node.name, path.name) == path.name


def test_torchvision_stand_ins_do_not_import_torchvision():
    for entry in standins.TORCHVISION_OPS.values():
        assert "import torchvision" not in standins.read_source(entry)


def test_files_run_on_their_own(tmp_path):
    for path in FILES:
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        spec = importlib.util.spec_from_file_location(f"alone_{path.stem}", copy)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_lookup_tells_the_namespaces_apart():
    assert standins.find_stand_in("nms").file == "native/nms.py"
    assert standins.find_stand_in("nms", "torchvision").file == "native/torchvision_ops.py"
    assert standins.find_stand_in("nms", "detectron2").file == "native/nms.py"
    assert standins.find_stand_in("no_such_operator") is None


def test_index_does_not_import_torch():
    code = "import sys; sys.path.insert(0, '.'); import extract.standins; assert 'torch' not in sys.modules"
    root = Path(standins.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
