"""What foreign code can import: the declared runtime, and nothing else that is installed."""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from curate.model.options import CurateOptions
from curate.run.pipeline import describe_options
from lemur_core.files.cache import remove_path
from lemur_core.files.errors import UserError
from lemur_core.sandbox import Job, Sandbox
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.sandbox.link import prepare_interpreter
from lemur_core.sandbox.runtime import DECLARED, NAMED_SETS, expand_sets, find_runtime

ENTRY = "lemur_core.sandbox.loader:run_text"

#: Which of these names a job can import, and which distributions it sees.
LOOK = """
import importlib, importlib.metadata, pkgutil
answer = {"imported": [], "found": [], "listed": sorted({module.name for module in pkgutil.iter_modules()})}
for name in ("numpy", "torch", "torchvision", "sympy", "PIL", "pytest", "hypothesis", "pydantic"):
    try:
        importlib.import_module(name)
        answer["imported"].append(name)
    except ModuleNotFoundError:
        pass
    if importlib.util.find_spec(name):
        answer["found"].append(name)
answer["distributions"] = sorted({d.metadata["Name"].lower() for d in importlib.metadata.distributions()})
answer["leaves"] = callable(exit) and callable(quit)
"""


@pytest.mark.parametrize(("unsafe", "further"), [(False, ()), (True, ("pydantic",))])
def test_a_job_sees_the_declared_runtime_and_what_is_asked_for_alone(unsafe: bool, further: tuple[str, ...]) -> None:
    with Sandbox(workers=1, entries=[ENTRY], unsafe=unsafe, runtime=further) as box:
        (outcome,) = box.run([Job("look", ENTRY, {"code": LOOK})])
    assert isinstance(outcome.value, dict), outcome.error
    seen = outcome.value
    for what in ("imported", "found"):
        assert set(seen[what]) == {*DECLARED, "sympy", "PIL", *further}, what
    assert {"pytest", "hypothesis", "pydantic"} & set(seen["listed"]) == set(further)
    versions = find_runtime(further).versions
    assert {name.replace("_", "-") for name in seen["distributions"]} == versions.keys()
    assert ({"pydantic", "annotated-types", "pydantic-core"} <= versions.keys()) == bool(further)
    assert seen["leaves"]


def test_an_environment_that_is_a_project_shows_its_libraries_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefix of an environment made in a project is the project's folder."""
    project = tmp_path / "project"
    for name in (".env", "notes.txt", "src/secret.py", "lib/python3.11/abc.py", "bin/python", "share/mine/x"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    monkeypatch.setattr("sys.base_prefix", str(project))
    monkeypatch.setattr("sys.base_exec_prefix", str(project))
    readable = [Path(path) for path in prepare_interpreter((), (), tmp_path / "home").readable]
    assert [path for path in readable if path.is_relative_to(project)] == [project / "bin", project / "lib"]
    assert not [path for path in readable if project.is_relative_to(path)]


def test_versions_and_files_are_those_installed() -> None:
    versions = find_runtime().versions
    assert {name: versions[name] for name in DECLARED} == {name: importlib.metadata.version(name) for name in DECLARED}
    assert not [name for name in versions if name.startswith(("nvidia", "cuda"))]
    assert list(versions) == sorted(versions)
    folder = find_runtime().folder()
    assert (folder / "numpy").resolve() == Path(numpy.__file__).parent.resolve()
    assert (folder / "typing_extensions.py").is_file()
    assert all(link.exists() for link in folder.iterdir())
    assert not (folder / "pytest").exists()


def put(path: Path, text: str | None) -> None:
    """Put a file in the place of whatever is there, or a folder."""
    remove_path(path)
    path.mkdir() if text is None else path.write_text(text)


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "numpy").unlink(),
        lambda folder: put(folder / "numpy", "x"),
        lambda folder: put(folder / "more.py", "x"),
        lambda folder: (put(folder / "__pycache__", None), (folder / "__pycache__" / "half.pyc").touch()),
        lambda folder: ((folder / "numpy").unlink(), (folder / "numpy").symlink_to(folder)),
        lambda folder: put(folder, "x"),
        lambda folder: put(folder, None),
    ],
)
def test_a_folder_that_is_not_as_it_was_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path))
    folder = find_runtime().folder()
    whole = {path.name: path.readlink() for path in folder.iterdir()}
    harm(folder)
    assert find_runtime().folder() == folder
    assert {path.name: path.readlink() for path in folder.iterdir()} == whole
    assert capsys.readouterr().err.count("is damaged and was dropped") == 1
    assert find_runtime().folder() == folder
    assert capsys.readouterr().err == ""


def test_the_server_writes_no_bytecode_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where half of it, as after a power cut, would stop every later server."""
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path))
    with Sandbox(preload=("typing_extensions",), sys_path=[Path(__file__).parent], workers=1) as box:
        (outcome,) = box.run([Job("one", ENTRY, {"code": "import typing_extensions\nanswer = 1"})])
    assert outcome.value == 1, outcome.error
    assert [path for path in tmp_path.rglob("*.pyc") if path.resolve().is_relative_to(tmp_path)] == []


def test_a_name_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"--runtime nothing-such: .* pip install nothing-such$"):
        find_runtime(("nothing-such",))
    monkeypatch.setitem(NAMED_SETS, "some-nets", {"nothing": "nothing-such"})  # type: ignore[arg-type]
    told = r"^--runtime some-nets: nothing-such is not installed here; pip install 'lemur-curator\[some-nets\]'$"
    with pytest.raises(UserError, match=told):
        find_runtime(("some-nets",))


def test_names_of_sets_are_expanded() -> None:
    names = expand_sets(("lemur-nets", "Einops", "my_package"))
    assert set(names) == {*NAMED_SETS["lemur-nets"].values(), "my-package"}
    assert list(names) == sorted(set(names))
    names = describe_options(CurateOptions(runtime=("lemur-nets", "Einops")))["runtime"]
    assert list(names) == sorted(NAMED_SETS["lemur-nets"].values())


def test_an_outcome_is_kept_for_one_runtime_alone() -> None:
    job = Job("one", ENTRY, {"code": ""})
    with CachedSandbox() as plain, CachedSandbox(runtime=("pydantic",)) as fuller:
        assert plain.key_of(job) != fuller.key_of(job)
        assert plain.key_of(job) == CachedSandbox().key_of(job)
