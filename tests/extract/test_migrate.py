"""A block's file in another project: what is written, what is proven, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from extract.migrate import choose_form, describe, migrate
from extract.model.results import Result, code_columns
from extract.specs.make import print_call
from lemur_core.files.errors import UserError
from tests.builders import extractions
from tests.builders.suites import read_files, table, write_files

BLOCK = read_files(__file__, "migrate.md")["BLOCK"]
ARGUMENTS = {
    "init": {"args": ["6"], "kwargs": {"act": "Swish()"}},
    "forward": {"args": ["torch.randn((2, 6, 5, 5))"], "kwargs": {}},
}
OBSERVED = {"cases": [{"inputs": {"x": f"float32 {batch}x6x5x5"}, "outputs": []} for batch in (2, 3)]}


def write_folder(folder: Path, license_: str = "MIT", code: str = BLOCK) -> Path:
    of = extractions.source(folder, license=license_)
    known = {"arguments": json.dumps(ARGUMENTS), "observed": json.dumps(OBSERVED)}
    row = extractions.block(of, "Residual", "backward", **code_columns(code), **known)
    extractions.write(folder / "out", [Result(row, ((of.name, "alpha/blocks.py"),))], [of], level="backward")
    return folder / "out"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("extraction"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_in(place: Path) -> dict[str, str]:
    found = sorted(path for path in place.rglob("*") if path.is_file())
    return {path.relative_to(place).as_posix(): path.read_text(encoding="utf-8") for path in found}


@pytest.mark.slow  # a sandbox each, as below
@table(__file__, "migrate.md", "The module by which it is imported", globals())
def test_the_module_by_which_it_is_imported(
    folder: Path, place: Path, files: dict[str, str], into: str, call: str, made: list[str]
) -> None:
    write_files(place, files)
    facts = migrate(folder, "Residual", Path(into))
    assert facts["call"][:2] == ["import torch", call]
    assert facts["files"] == made
    assert facts["proof"] == {"steps": 13, "not_imported": None}
    assert files_in(place) == files | dict.fromkeys(made, "") | {into: BLOCK}


def test_the_printed_call_gives_what_the_block_gives(
    folder: Path, place: Path, lemur_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user types it, by no code of ours."""
    settings = "[project]\nname = 'p'\nlicense = 'Apache-2.0'\n"
    write_files(place, {"p/__init__.py": "NAME = 'p'\n", "p/pyproject.toml": settings})
    done = lemur_here("migrate", "Residual", "--in", folder, "--into", "p/se.py", cwd=place)
    assert done.returncode == 0, done.stderr
    head, _, call = done.stdout.partition("call     ")
    assert "license  MIT; the project has Apache-2.0\n" in head
    assert "wrote    p/se.py\n" in head
    lines = [line.strip() for line in call.splitlines()]
    own = [line for line in lines if not line.startswith("from p")]
    monkeypatch.syspath_prepend(place)
    given = []
    for code in (lines[:-1], [BLOCK, *own[:-1]]):
        names: dict[str, Any] = {"__name__": "typed"}
        exec("\n".join(["import torch", "torch.manual_seed(0)", *code, f"given = {lines[-1]}.sum().item()"]), names)
        given.append(names["given"])
    assert sys.modules.pop("p.se").__file__ == str(place / "p" / "se.py")
    del sys.modules["p"]
    assert given[0] == given[1]


@pytest.mark.slow
def test_packages_that_cannot_be_imported_here_are_named(folder: Path, place: Path) -> None:
    settings = "[project]\nname = 'p'\ndependencies = ['torch']\n"  # with which it is tried again
    write_files(place, {"pyproject.toml": settings, "p/__init__.py": "import nowhere_to_be_found\n"})
    facts = migrate(folder, "Residual", Path("p/a.py"))
    assert facts["proof"]["not_imported"] == "ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    assert "but      without the project's own __init__ files, which cannot be imported here: Mod" in describe(facts)


@pytest.mark.slow
def test_a_file_that_the_package_needs_is_not_replaced(folder: Path, place: Path) -> None:
    files = {"p/__init__.py": "from .a import Other\n", "p/a.py": "class Other:\n    pass\n"}
    write_files(place, files)
    with pytest.raises(UserError, match=r"not proven in p/a\.py: ImportError: cannot import name 'Other' from 'p\.a'"):
        migrate(folder, "Residual", Path("p/a.py"), force=True)
    assert files_in(place) == files
    write_files(place, {"p/__init__.py": ""})
    migrate(folder, "Residual", Path("p/a.py"), force=True)
    assert files_in(place)["p/a.py"] == BLOCK


@pytest.mark.slow
@table(__file__, "migrate.md", "What the proof refuses", globals())
def test_what_the_proof_refuses(folder: Path, place: Path, files: dict[str, str], into: str, said: str) -> None:
    test_what_is_refused(folder, place, files, into, said)


@table(__file__, "migrate.md", "What is refused in one line, and writes nothing", globals())
def test_what_is_refused(folder: Path, place: Path, files: dict[str, str], into: str, said: str) -> None:
    write_files(place, files)
    with pytest.raises(UserError) as refused:
        migrate(folder, "Residual", Path(into))
    assert said in str(refused.value)
    assert files_in(place) == files


@pytest.fixture(scope="module")
def copyleft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("copyleft"), "GPL-3.0-only")


def test_a_license_that_does_not_permit_it(copyleft: Path, place: Path) -> None:
    write_files(place, {"p/__init__.py": ""})
    with pytest.raises(UserError, match=r"GPL-3\.0-only, is not known to permit this, and is not the project's \(NOAS"):
        migrate(copyleft, "Residual", Path("p/a.py"))
    assert files_in(place) == {"p/__init__.py": ""}


@pytest.mark.slow
def test_force_and_the_project_s_own_license_permit_it(copyleft: Path, place: Path) -> None:
    settings = "[project]\nname = 'q'\nlicense = 'GPL-3.0-only'\n"
    write_files(place, {"p/__init__.py": "", "q/pyproject.toml": settings, "q/b.py": ""})
    assert "NOT KNOWN TO PERMIT" in describe(migrate(copyleft, "Residual", Path("p/a.py"), force=True))
    assert migrate(copyleft, "Residual", Path("q/a.py"))["permitted"]


def test_the_form_that_is_there_is_chosen(tmp_path: Path) -> None:
    row = extractions.block(extractions.source(tmp_path), "Residual", "backward")
    lean: dict[str, Any] = {"lean_code": "y = 1\n", "lean_license": "MIT", "lean_requires": ["einops"]}
    row = row.model_copy(update={**lean, "code": None})
    form = choose_form(tmp_path, row)
    assert (form.code, form.license, form.requires, form.lean) == ("y = 1\n", "MIT", ("einops",), True)
    with pytest.raises(UserError, match="has no code"):
        choose_form(tmp_path, row, lean=False)


def test_names_that_nobody_defines_are_not_printed(tmp_path: Path) -> None:
    row = extractions.block(extractions.source(tmp_path), "Residual", "backward", arguments=json.dumps(ARGUMENTS))
    assert print_call(row, BLOCK.replace("class Swish", "class Other"), "p.a") == ()
