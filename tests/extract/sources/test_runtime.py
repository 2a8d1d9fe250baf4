"""Runtimes of blocks, from a folder of generated wheels as index."""

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import extract.proofs.runtime
import extract.proofs.sdists
from extract.proofs.runtime import BlockRuntime, extra_folders, runtime_for
from extract.proofs.sdists import fetch_tests
from extract.resolve.distributions import find_requirement
from extract.sources import open_source
from lemur_core.files.cache import cache_folder
from lemur_core.sandbox import Job, Sandbox, Status

Wheel = Callable[..., Path]
Files = Mapping[str, str]


@pytest.fixture
def wheel(make_wheel: Callable[..., Path]) -> Wheel:
    def make(
        name: str, version: str = "1.0", files: Files | None = None, needs: Sequence[str] = (), **more: str
    ) -> Path:
        metadata = "".join(f"Requires-Dist: {need}\n" for need in needs)
        return make_wheel(name, version, files or {f"{name}.py": f"VERSION = {version!r}\n"}, metadata, **more)

    return make


def reasons(runtime: BlockRuntime) -> dict[str, str]:
    return dict(runtime.unavailable)


def texts(runtime: BlockRuntime) -> dict[str, str]:
    """The Python files of a runtime by their paths."""
    assert runtime.folder is not None
    return {path.relative_to(runtime.folder).as_posix(): path.read_text() for path in runtime.folder.rglob("*.py")}


def forbid_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract.proofs.runtime, "download", lambda *_, **__: pytest.fail("asked pip"))


def test_hard_dependencies_are_followed_and_what_is_there_is_not_fetched(wheel: Wheel) -> None:
    wheel(
        "tinya",
        needs=("tinyb>=1", "torch>=2", "numpy", "nvidia-cublas", "nvidia-cuda-runtime-cu12", "nvidia-tiny", "sympy", 'absent ; extra == "more"',
               'other ; python_version < "3"'),
    )  # fmt: skip
    wheel("tinyb", "1.5")
    wheel("tinyb", "2.0")
    wheel("nvidia_tiny")
    runtime = runtime_for(["tinya", "sympy", "torch"])
    assert runtime.installed == ("nvidia-tiny==1.0", "tinya==1.0", "tinyb==2.0")
    assert runtime.unavailable == ()
    assert texts(runtime).keys() == {"nvidia_tiny.py", "tinya.py", "tinyb.py"}


def test_extras_and_known_names(wheel: Wheel) -> None:
    wheel("tinya", needs=('tinyb ; extra == "more"', "origin"))
    wheel("tinyb")
    runtime = runtime_for(["tinya[more]"], known=["Origin"])
    assert runtime.installed == ("tinya==1.0", "tinyb==1.0")
    assert runtime.unavailable == ()


def test_another_release_than_that_of_the_declared_runtime(wheel: Wheel) -> None:
    """Requested by a block itself, and only then: dependencies of a distribution come from the runtime."""
    wheel("sympy", "0.9")
    wheel("tiny", needs=("sympy<1",))
    wheel("pytest", "0.1")
    assert runtime_for(["sympy<1"]).installed == ("sympy==0.9",)
    runtime = runtime_for(["tiny", "pytest"])
    assert runtime.installed == ("pytest==0.1", "tiny==1.0"), "pytest is installed here, and of no declared runtime"
    assert reasons(runtime)["sympy"].startswith("the declared runtime has ")
    assert reasons(runtime)["sympy"].endswith(", not <1; tiny needs it")
    assert runtime_for(["sympy>1"]).installed == ()


def test_the_second_time_pip_is_not_asked(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel("tinya", needs=("gone",))
    first = runtime_for(["tinya"])
    assert first.folder is not None
    assert "no wheel" in reasons(first)["gone"]
    assert "tinya needs it" in reasons(first)["gone"]
    forbid_pip(monkeypatch)
    assert runtime_for(["tinya"]) == first


def test_the_folder_depends_on_what_is_in_it_only(wheel: Wheel) -> None:
    wheel("tinya")
    wheel("tinyb")
    both = runtime_for(["tinyb", "tinya"])
    assert runtime_for(["tinya", "tinyb>=1"]).folder == both.folder
    assert runtime_for(["tinya"]).folder != both.folder


@pytest.mark.parametrize(("asked", "needed"), [("shared<3", "shared!=2.0"), ("shared", "shared<2")])
def test_bounds_from_two_sides_are_joined(wheel: Wheel, asked: str, needed: str) -> None:
    """Also if the second one, processed later, excludes the version picked for the first."""
    for version in ("1.0", "2.0", "3.0"):
        wheel("shared", version)
    wheel("tinya", needs=(needed,))
    assert runtime_for([asked, "tinya"]).installed == ("shared==1.0", "tinya==1.0")


def test_of_two_files_at_one_place_the_first_stays(wheel: Wheel) -> None:
    wheel("tinya", files={"tests/__init__.py": "OWNER = 'a'"})
    wheel("tinyb", files={"tests/__init__.py": "OWNER = 'b'", "tinyb.py": ""})
    alone, both = runtime_for(["tinyb"]), runtime_for(["tinyb", "tinya"])
    assert [texts(runtime)["tests/__init__.py"] for runtime in (both, alone)] == ["OWNER = 'a'", "OWNER = 'b'"]


def test_opencv_comes_without_its_windows(wheel: Wheel) -> None:
    wheel("opencv_python", files={"cv2/__init__.py": "WINDOWS = True"})
    wheel("opencv_python_headless", files={"cv2/__init__.py": "WINDOWS = False"})
    runtime = runtime_for(["opencv-python"])
    assert runtime.installed == ("opencv-python-headless==1.0",)
    assert texts(runtime) == {"cv2/__init__.py": "WINDOWS = False"}


def test_no_code_of_a_distribution_is_run(make_sdist: Callable[..., Path], wheel: Wheel, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    code = f"open({str(proof)!r}, 'w')"
    wheel("tinya", files={"tinya.py": code, "tinya.pth": f"import os; {code}", "sitecustomize.py": code})
    settings = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    make_sdist("sdistonly", "1.0", {"pyproject.toml": settings, "backend.py": code})
    runtime = runtime_for(["tinya", "sdistonly"])
    assert runtime.installed == ("tinya==1.0",)
    assert "its sdist does not list its modules" in reasons(runtime)["sdistonly"]
    assert not proof.exists()


COMPILED = {"tinyb.egg-info/top_level.txt": "tinyb", "tinyb/__init__.py": "", "tinyb/fast.pyx": "", "setup.py": ""}


def test_the_modules_of_an_sdist_where_there_is_no_wheel(make_sdist: Callable[..., Path], wheel: Wheel) -> None:
    modules = dict.fromkeys(("src/tiny/__init__.py", "src/other.py", "src/loose.py", "tests/tiny/test_tiny.py"), "")
    listed = {"src/tinya.egg-info/top_level.txt": "tiny\nother\n", "src/tiny/sizes.json": "[]", "setup.py": "1 / 0"}
    make_sdist("tinya", "1.0", {**modules, **listed}, "Requires-Dist: tinyb\n")
    make_sdist("tinyb", "1.0", COMPILED)
    wheel("tinyc")
    make_sdist("tinyc", "2.0", {"tinyc.egg-info/top_level.txt": "tinyc", "tinyc.py": ""})
    wheel("tinyd", "2.0")
    make_sdist("tinyd", "1.0", {"tinyd.egg-info/top_level.txt": "old_tinyd", "old_tinyd.py": "", "setup.py": ""})
    runtime = runtime_for(["tinya", "tinyc", "tinyd==1.*"])
    assert runtime.installed == ("tinya==1.0", "tinyc==1.0", "tinyd==1.0")
    assert texts(runtime).keys() == {"tiny/__init__.py", "other.py", "tinyc.py", "old_tinyd.py"}
    assert runtime.folder is not None
    assert (runtime.folder / "tiny" / "sizes.json").read_text() == "[]"
    assert reasons(runtime) == {
        "tinyb": "there is no wheel of it for this Python and platform, and its sdist has to be compiled; tinya needs it"
    }


@pytest.mark.slow
def test_for_recording_what_an_extra_requires_needs_not_be_compiled(
    make_sdist: Callable[..., Path], wheel: Callable[..., Path], tmp_path: Path
) -> None:
    for version in ("1.0", "2.0"):
        make_sdist("tinyb", version, {**COMPILED, f"tinyb/v{version[0]}.py": ""})
    (tmp_path / "own.py").write_text("import tinyb\n")
    requires = ("numpy", "tinyb<2 ; extra == 'all'", "tinyc ; extra == 'all'")
    source = replace(open_source(str(tmp_path)), requires=requires)
    (folder,) = extra_folders(source, "tinyb")
    assert {path.name for path in (folder / "tinyb").iterdir() if path.is_file()} == {"__init__.py", "v1.py"}
    assert extra_folders(source, "numpy") == extra_folders(source, "tinyc") == []
    assert runtime_for(["tinyb<2"]).folder is None
    # A package that is generally known need not be stated.
    wheel("six", "1.0")
    (known,) = extra_folders(source, "six")
    assert any(known.glob("six*"))


@pytest.mark.parametrize(
    ("requirement", "name", "reason"),
    [
        ("tool @ git+https://example.org/tool", "tool", "only named packages are fetched"),
        ("tool @ file:///etc/passwd", "tool", "only named packages are fetched"),
        ("--pre", "--pre", "not a requirement of PEP 508"),
        ("elsewhere", "elsewhere", "no wheel of it"),
        ("sympy<1", "sympy", "no wheel of it"),
    ],
)
def test_what_cannot_be_had(wheel: Wheel, requirement: str, name: str, reason: str) -> None:
    wheel("elsewhere", tag="cp27-cp27m-win32")
    runtime = runtime_for([requirement])
    assert reason in reasons(runtime)[name]
    assert runtime.folder is None


def test_a_version_without_a_wheel_gives_way_to_the_newest(wheel: Wheel) -> None:
    assert runtime_for(["torch>=2", 'nothing ; python_version < "3"']) == BlockRuntime(None, (), ())
    wheel("tiny")
    runtime = runtime_for(["tiny==9"])
    assert runtime.installed == ("tiny==1.0",)
    assert reasons(runtime)["tiny"] == "there is no wheel of ==9; 1.0 is used"


@pytest.mark.parametrize("member", ["../out.py", "{folder}/out.py", "tinya-1.0.data/purelib/{folder}/out.py"])
def test_no_path_leaves_the_folder(wheel: Wheel, tmp_path: Path, member: str) -> None:
    wheel("tinya", files={member.format(folder=tmp_path): "x = 1"})
    runtime = runtime_for(["tinya"])
    assert "leads out of its folder" in reasons(runtime)["tinya"]
    assert not list(tmp_path.rglob("*out.py"))


def test_links_and_scripts_are_left_out(index: Path, wheel: Wheel) -> None:
    path = wheel(
        "tinya", files={"tinya.py": "", "tinya-1.0.data/scripts/run.py": "", "tinya-1.0.data/platlib/deep.py": ""}
    )
    link = zipfile.ZipInfo("link.py")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    assert texts(runtime_for(["tinya"])).keys() == {"tinya.py", "deep.py"}


@pytest.mark.parametrize(
    ("bound", "says"), [("MAX_WHEEL_BYTES", "more than 0 MiB"), ("MAX_UNPACKED_BYTES", "unpacks to more")]
)
def test_bounds(wheel: Wheel, monkeypatch: pytest.MonkeyPatch, bound: str, says: str) -> None:
    wheel("large", files={"large.py": str(list(range(20_000)))})
    with monkeypatch.context() as patch:
        patch.setattr(extract.proofs.runtime, bound, 20_000)
        assert says in reasons(runtime_for(["large"]))["large"]
    if bound == "MAX_UNPACKED_BYTES":  # that a wheel is too large is known for a day
        assert runtime_for(["large"]).installed == ("large==1.0",)


def test_damaged_and_mislabelled_wheels(index: Path, wheel: Wheel) -> None:
    (index / "broken-1.0-py3-none-any.whl").write_bytes(b"not a zip file")
    wheel("tinyb").rename(index / "tinyc-1.0-py3-none-any.whl")
    told = reasons(runtime_for(["broken", "tinyc"]))
    assert set(told) == {"broken", "tinyc"}
    assert all(told.values())


def test_without_a_network_a_run_goes_on_and_the_next_one_asks_again(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel("tinya")
    wheel("tinyb")
    first = runtime_for(["tinya"])
    with monkeypatch.context() as patch:
        patch.delenv("PIP_NO_INDEX")
        patch.delenv("PIP_FIND_LINKS")
        patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        runtime = runtime_for(["tinya", "tinyb", "tinyc"])
    assert runtime.installed == first.installed
    assert reasons(runtime) == dict.fromkeys(["tinyb", "tinyc"], reasons(runtime)["tinyb"])
    assert "cannot be reached" in reasons(runtime)["tinyb"]
    assert runtime_for(["tinyb"]).installed == ("tinyb==1.0",)


@pytest.mark.slow
def test_the_tests_of_a_release_are_asked_for_once_a_day(
    wheel: Wheel, make_sdist: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel("tiny")
    source = open_source("tiny@1.0")
    with monkeypatch.context() as patch:
        patch.delenv("PIP_NO_INDEX")
        patch.delenv("PIP_FIND_LINKS")
        patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        assert fetch_tests(source, []) is None
    assert "tiny@1.0: without the tests of its sdist: the package index cannot be reached" in capsys.readouterr().err
    assert fetch_tests(source, []) is None  # there is none
    make_sdist("tiny", "1.0", {"tests/test_tiny.py": "import tiny\n", "tiny.py": "", "setup.py": ""})
    assert fetch_tests(source, []) is None  # remembered
    assert capsys.readouterr().err.count("fetching") == 1
    (absent,) = cache_folder("runtime", "v1", "beside").glob("*.absent")
    yesterday = absent.stat().st_mtime - 25 * 3600
    os.utime(absent, (yesterday, yesterday))
    folder = fetch_tests(source, [])
    assert folder is not None
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*.py")] == ["tests/test_tiny.py"]
    monkeypatch.setattr(extract.proofs.sdists, "download", None)
    assert fetch_tests(source, []) == folder


@pytest.mark.slow
def test_two_at_once_agree_and_leave_nothing_behind(wheel: Wheel) -> None:
    for number in range(4):
        wheel(f"tiny{number}", needs=(f"tiny{(number + 1) % 4}",))
    with ThreadPoolExecutor(4) as pool:
        results = set(pool.map(lambda number: runtime_for([f"tiny{number}"]), range(4)))
    assert len(results) == 1
    assert list(cache_folder("sources").glob("*/work")) != []
    assert list(cache_folder("sources").glob("*/work/*")) == []


def test_a_job_imports_it_from_the_end_of_the_path(wheel: Wheel, tmp_path: Path) -> None:
    wheel("tinya", files={"tinya/__init__.py": "VALUE = 7", "json.py": "raise RuntimeError"})
    runtime = runtime_for(["tinya"])
    assert runtime.folder is not None
    (tmp_path / "entries").mkdir()
    probe = "import json, sys\ndef value(payload):\n    sys.path.append(payload['folder'])\n    import tinya\n"
    (tmp_path / "entries/runtime_probe.py").write_text(f"{probe}    return [tinya.VALUE, json.loads('1')]\n")
    with Sandbox(preload=(), sys_path=[tmp_path / "entries"], readable=[runtime.folder], workers=1) as box:
        (outcome,) = box.run([Job("one", "runtime_probe:value", {"folder": str(runtime.folder)})])
    assert (outcome.status, outcome.value) == (Status.OK, [7, 1]), outcome.error


def test_a_distribution_without_the_package_is_not_used(wheel: Wheel) -> None:
    wheel("hydra", files={"hydra_cms.py": ""}, needs=("tinyb",))
    wheel("tinyb")
    wheel("yamltools", files={"yaml/__init__.py": ""})
    packages = {"hydra": {"hydra"}, "yamltools": {"yaml"}}
    runtime = runtime_for(["hydra", "yamltools"], packages=packages)
    assert runtime.installed == ("yamltools==1.0",)
    assert runtime.without_package == {"hydra"}
    assert reasons(runtime) == {"hydra": "1.0 does not contain hydra; not used"}


def test_a_guess_is_never_requested(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_pip(monkeypatch)
    runtime = runtime_for([find_requirement("acme", ())], packages={"acme": {"acme"}})
    assert (runtime.installed, runtime.unavailable) == ((), ())
