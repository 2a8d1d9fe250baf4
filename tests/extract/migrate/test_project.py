"""A block becomes a module of a project: it follows the layout, and nothing else is touched."""

import difflib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extract.extractor import extract_to
from extract.migrate.project.project import migrate_into_project
from extract.migrate.source_block import choose_form
from extract.model.options import MigrateOptions
from extract.model.results import Options as ExtractOptions
from extract.model.results import Result, code_columns
from extract.sources import open_source
from lemur.folders import trace
from lemur_core.files.errors import RetryableError, UserError
from manifests.provenance import find_inlined_blocks
from tests.builders import extractions, projects

BLOCK = "alpha@1.0::alpha.blocks.Residual"
NEW = "src/proj/layers/residual.py"
TEST = "tests/test_residual.py"
INIT = "src/proj/layers/__init__.py"


def write_folder(folder: Path, code: str, license_: str = "MIT", **changes: Any) -> Path:
    of = extractions.source(folder, "alpha@1.0", license=license_)
    told = {"arguments": projects.ARGUMENTS, "observed": json.dumps(projects.OBSERVED), "category": "Regularization"}
    row = extractions.block(of, "Residual", "backward", **code_columns(code), **{**told, **changes})
    extractions.write(folder / "out", [Result(row, ((of.name, "alpha/blocks.py"),))], [of], level="backward")
    return folder / "out"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("extraction"), projects.BLOCK)


def everything(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file() and ".git/" not in path.as_posix())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def moved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One migration into a project with equal definitions: first as a dry run, then written."""
    root = projects.make(tmp_path_factory.mktemp("src"), projects.SRC)
    before = everything(root)
    shown = migrate_into_project(folder, "Residual", root, MigrateOptions(dry_run=True))
    untouched = everything(root) == before
    said = migrate_into_project(folder, "Residual", root, MigrateOptions())
    return {
        "folder": folder,
        "root": root,
        "before": before,
        "after": everything(root),
        "diff": shown,
        "said": said,
        "dry": untouched,
    }


def test_layout_and_registration_are_followed(moved: dict[str, Any]) -> None:
    assert moved["after"].keys() - moved["before"].keys() == {NEW, TEST}
    changed = {path for path, data in moved["before"].items() if moved["after"][path] != data}
    assert changed == {INIT}
    expected = (
        projects.SRC[INIT]
        .replace("from .squeeze", "from .residual import Residual\nfrom .squeeze")
        .replace("    'SqueezeExcite'", "    'Residual',\n    'SqueezeExcite'")
    )
    assert moved["after"][INIT].decode() == expected
    assert "import unittest" not in moved["after"][TEST].decode()
    test = moved["after"][TEST].decode()
    assert "import torch\nfrom proj.layers.residual import Residual\n\n" in test
    assert "block = Residual(6)\n" in test


def test_where_it_comes_from_can_be_read(moved: dict[str, Any]) -> None:
    text = moved["after"][NEW].decode()
    (one,) = find_inlined_blocks(text)
    assert (one.block, one.path, one.lines, one.license) == (BLOCK, "alpha/blocks.py", (3, 9), "MIT")
    assert "# SPDX-License-Identifier: MIT\n" in text
    assert "import math\n\nimport torch\nfrom torch import nn\n\n\n" in text
    assert "class DropPath(nn.Module):" in text
    chain = trace(str(moved["root"] / NEW), [moved["folder"]])
    assert [link.what for link in chain][:4] == ["file", "block", "block", "release"]
    assert any(line.startswith("licence   MIT, as the project's own") for line in moved["said"].splitlines())


def test_a_dry_run_shows_what_is_then_written(moved: dict[str, Any], tmp_path: Path) -> None:
    assert moved["dry"]
    root = projects.make(tmp_path, projects.SRC)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "apply", "-"], cwd=root, input=moved["diff"] + "\n", text=True, check=True)
    assert everything(root) == moved["after"]


@pytest.mark.slow
def test_a_second_time_needs_force(moved: dict[str, Any], folder: Path) -> None:
    with pytest.raises(UserError, match=r"is there already: src/proj/layers/residual\.py; add --force"):
        migrate_into_project(folder, "Residual", moved["root"], MigrateOptions())
    migrate_into_project(folder, "Residual", moved["root"], MigrateOptions(force=True))
    assert everything(moved["root"]) == moved["after"]


@pytest.mark.slow
def test_another_layout(folder: Path, tmp_path: Path) -> None:
    root = projects.make(tmp_path, projects.FLAT)
    facts = json.loads(migrate_into_project(folder, "Residual", root, MigrateOptions(as_json=True)))
    assert facts["files"] == ["flatnet/Residual.py", "flatnet/__init__.py", "test/Residual_test.py"]
    text = (root / "flatnet/Residual.py").read_text(encoding="utf-8")
    assert "class DropPath(nn.Module):" in text
    init = (root / "flatnet/__init__.py").read_text(encoding="utf-8")
    assert init == projects.FLAT["flatnet/__init__.py"].replace(
        "from flatnet.Sq", "from .Residual import Residual\nfrom flatnet.Sq"
    )
    test = (root / "test/Residual_test.py").read_text(encoding="utf-8")
    assert "class TestResidual(unittest.TestCase):" in test
    assert "declares none that is known here" in facts["notes"][0]


@pytest.mark.slow
def test_what_the_project_s_formatter_changes_is_proved(folder: Path, tmp_path: Path) -> None:
    configured = projects.PYPROJECT + "[tool.ruff]\nline-length = 60\n"
    root = projects.make(tmp_path, {**projects.SRC, "pyproject.toml": configured})
    facts = json.loads(migrate_into_project(folder, "Residual", root, MigrateOptions(as_json=True)))
    assert "format ruff, as the project configures" in facts["notes"]
    code = (root / NEW).read_text(encoding="utf-8").partition("import torch")[2]
    assert "nn.Conv2d(\n            dim, make_divisible(dim * WIDTH), 1\n        )" in code


@pytest.mark.slow
def test_what_cannot_be_proved_is_not_written(folder: Path, tmp_path: Path) -> None:
    root = projects.make(tmp_path, projects.SRC, src__proj__layers__ops="import nowhere_to_be_found\n")
    before = everything(root)
    with pytest.raises(UserError, match=r"not proved in .*No module named 'nowhere_to_be_found'; nothing was written"):
        migrate_into_project(folder, "Residual", root, MigrateOptions())
    assert everything(root) == before


@pytest.mark.slow
def test_what_the_project_has_is_not_brought(folder: Path, tmp_path: Path) -> None:
    body = projects.BLOCK.partition("\n\n")[2]
    root = projects.make(tmp_path, projects.SRC, src__proj__layers__other=body)
    with pytest.raises(UserError, match=r"proj\.layers\.other\.Residual of the project is the same"):
        migrate_into_project(folder, "Residual", root, MigrateOptions())


def test_bad_input_gets_one_line(folder: Path, tmp_path: Path) -> None:
    root = projects.make(tmp_path, projects.SRC)
    for out, said in (
        (root / "src/proj/layers/drop.py", "exists already; choose another --out"),
        (tmp_path.parent / "elsewhere.py", "lies outside of"),
        (root / "src/proj/my-block.py", "Python cannot import a module of this name"),
    ):
        with pytest.raises(UserError, match=said):
            migrate_into_project(folder, "Residual", root, MigrateOptions(out=out))
    with pytest.raises(UserError, match="is a package, not a project"):
        migrate_into_project(folder, "Residual", root / "src/proj", MigrateOptions())
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no Python code"):
        migrate_into_project(folder, "Residual", tmp_path / "empty", MigrateOptions())
    assert MigrateOptions().out is None


def test_the_command_tells_projects_from_networks(
    folder: Path, tmp_path: Path, lemur_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    root = projects.make(tmp_path / "p", projects.SRC)
    done = lemur_here("migrate", "Residual", "--into", root, "--in", folder, "--list", cwd=tmp_path)
    assert (done.returncode, "is a project; --site, --list" in done.stderr) == (2, True)
    done = lemur_here(
        "migrate", "Residual", "--into", root / "src/proj/train.py", "--in", folder, "--full", cwd=tmp_path
    )
    assert (done.returncode, "--full: is for projects" in done.stderr) == (2, True)
    done = lemur_here("migrate", "Nothing", "--into", root, "--in", folder, cwd=tmp_path)
    assert (done.returncode, "Nothing: no block of this folder has this name" in done.stderr) == (1, True)


def test_a_block_of_which_only_the_lean_form_is_there_is_moved_in_it(tmp_path: Path) -> None:
    of = extractions.source(tmp_path, "alpha@1.0")
    lean = {"lean_code": "y = 1\n", "lean_sha256": "2" * 64, "lean_license": "MIT", "lean_requires": ["einops"]}
    nothing = {"code": None, "code_sha256": None}
    row = extractions.block(of, "Residual", "backward").model_copy(update={**lean, **nothing})
    form = choose_form(tmp_path, row)
    assert (form.code, form.digest, form.license, form.requires, form.lean) == (
        "y = 1\n",
        "2" * 64,
        "MIT",
        ("einops",),
        True,
    )
    with pytest.raises(UserError, match="has no code"):
        choose_form(tmp_path, row, lean=False)


# --- between released packages ----------------------------------------------------------------------------------------


DONOR, HOST = "efficientnet-pytorch@0.7.1", "pytorch-tcn@1.2.3"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An extraction of the donor, and a copy of the host."""
    folder = tmp_path_factory.mktemp("real")
    try:
        host = open_source(HOST)
        open_source(DONOR)
    except RetryableError as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    shutil.copytree(host.root, folder / "host")
    names = ("Conv2dStaticSamePadding", "MemoryEfficientSwish")
    extract_to(folder / "blocks", ExtractOptions(sources=(DONOR,), names=names, jobs=1))
    return folder / "blocks", folder / "host"


@pytest.mark.network
@pytest.mark.slow
def test_a_block_of_one_package_in_another(released: tuple[Path, Path]) -> None:
    blocks, host = released
    before = {path: path.read_text(encoding="utf-8") for path in host.rglob("*.py")}
    for name in ("Conv2dStaticSamePadding", "MemoryEfficientSwish"):
        facts = json.loads(migrate_into_project(blocks, name, host, MigrateOptions(as_json=True)))
        assert facts["proof"]["tests"] == 1
        assert facts["proof"]["steps"] >= 7  # of one input in both modes
        assert facts["license"] == "Apache-2.0"
        (module,) = [path for path in facts["files"] if path.startswith("pytorch_tcn/") and "__init__" not in path]
        assert f"class {name}(" in (host / module).read_text(encoding="utf-8")
        assert (host / facts["files"][-1]).read_text(encoding="utf-8").count("import torch") >= 1
    for path, text in before.items():
        now = path.read_text(encoding="utf-8")
        changes = [line for line in difflib.ndiff(text.splitlines(), now.splitlines()) if line[0] in "-?"]
        assert changes == [], path
