"""Packages from a folder as index: wheels, sdists, pinned digests, and errors."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extract.sources import open_source
from lemur_core.files import pip, pip_guarded
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.pip import AbsentError, NoWheelError, download
from manifests.provenance.swhid import blob_sha1, directory_swhid
from tests.builders.suites import read_table

Make = Callable[..., Path]

FILES = read_table(__file__, "package.md", "Files", globals())
METADATA = "License: MIT\nRequires-Dist: torch>=2\n"


def test_a_wheel(make_wheel: Make) -> None:
    make_wheel("pkg", "1.0", {**FILES, "pkg-1.0.data/purelib/more.py": "", "pkg-1.0.data/scripts/run.py": ""}, METADATA)
    source = open_source("Pkg@1.0")
    assert (source.name, source.kind, source.version) == ("pkg@1.0", "package", "1.0")
    assert (source.origin, source.license, source.requires) == ("pkg:pypi/pkg@1.0", "MIT", ("torch>=2",))
    modules = {"more.py": "more", "pkg/__init__.py": "pkg", "pkg/layers/se.py": "pkg.layers.se"}
    assert {file.path: file.module for file in source.files} == modules
    assert source.files[2].blob == blob_sha1(b"import torch\n")
    assert source.swhid == directory_swhid((file.path, file.blob) for file in source.files)
    assert sorted(path.name for path in source.root.rglob("*.*")) == ["__init__.py", "more.py", "se.py"]


def test_an_sdist(make_sdist: Make) -> None:
    files = {f"src/{path}" if path.startswith("pkg") else path: data for path, data in FILES.items()}
    make_sdist("pkg", "1.0", {**files, "setup.py": "", "pkg.egg-info/requires.txt": "torch\n"}, "License: MIT\n")
    source = open_source("pkg@1.0")
    assert (source.name, source.license, source.requires) == ("pkg@1.0", "MIT", ("torch",))
    modules = {"src/pkg/__init__.py": "pkg", "src/pkg/layers/se.py": "pkg.layers.se"}
    assert {file.path: file.module for file in source.files} == modules


def test_a_warm_source_needs_neither_index_nor_pip(make_wheel: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel("pkg", "1.0", FILES)
    first = open_source("pkg@1.0")
    monkeypatch.setattr(pip, "_run_pip", None)
    assert open_source("pkg@1.0") == first
    assert open_source("pkg==1.0.0") == first
    named = open_source("pkg@1.0", name="mine", digest=first.digest, priority=2, paths=["pkg/layers"], exclude=["a"])
    assert (named.name, named.priority, named.paths, named.exclude) == ("mine@1.0", 2, ("pkg/layers",), ("a",))
    assert [named.in_scope(file.path) for file in named.files] == [False, True]
    assert named.files == first.files


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the code of a hostile release writes when it runs."""
    path = tmp_path / "it-ran"
    monkeypatch.setenv("MARKER", str(path))
    return path


RUN = "import os; open(os.environ['MARKER'], 'a').write(__file__)\n"
BACKEND = RUN + (
    "def prepare_metadata_for_build_wheel(folder, settings=None):\n"
    "    os.makedirs(folder + '/pkg-1.0.dist-info')\n"
    "    open(folder + '/pkg-1.0.dist-info/METADATA', 'w').write('Metadata-Version: 2.1\\nName: pkg\\nVersion: 1.0\\n')\n"
    "    return 'pkg-1.0.dist-info'\n"
    "def build_wheel(*_): raise SystemExit\n"
)
IN_TREE = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
HOSTILE = read_table(__file__, "package.md", "Hostile", globals())


def test_the_hostile_backend_does_run_under_plain_pip(make_sdist: Make, marker: Path, tmp_path: Path) -> None:
    """Otherwise the test below would prove nothing."""
    make_sdist("pkg", "1.0", {**FILES, **HOSTILE["in-tree backend"]})
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path / "to"), "pkg==1.0"]
    subprocess.run(command, check=True)
    assert marker.exists()


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_of_an_sdist_runs(make_sdist: Make, make_wheel: Make, marker: Path, kind: str) -> None:
    make_sdist("pkg", "1.0", {**FILES, **HOSTILE[kind]})
    make_wheel("evil", "1.0", {"evil.py": BACKEND})
    source = open_source("pkg@1.0")
    assert "pkg/layers/se.py" in {file.path for file in source.files}
    assert not marker.exists()


def test_nothing_else_can_be_started(tmp_path: Path, marker: Path) -> None:
    """Every way to start a program is refused under the hook."""
    (tmp_path / "pip.py").write_text(
        "import os, subprocess, sys\n"
        "ways = {'Popen': lambda: subprocess.run([sys.executable, '-c', '']), 'system': lambda: os.system('true'),\n"
        "  'execv': lambda: os.execv(sys.executable, ['x', '-c', '']), 'fork': os.fork, 'forkpty': os.forkpty,\n"
        "  'posix_spawn': lambda: os.posix_spawn(sys.executable, ['x', '-c', ''], {}),\n"
        "  'popen': lambda: os.popen('true'), 'spawn': lambda: os.spawnv(os.P_WAIT, sys.executable, ['x', '-c', ''])}\n"
        "for name, way in ways.items():\n"
        "    try:\n        way()\n"
        "    except PermissionError as error:\n        print(name, 'refused')\n"
        "    else:\n        print(name, 'ran')\n"
    )
    command = [sys.executable, "-P", pip_guarded.__file__, "pkg-", str(tmp_path / "result"), "0"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    names = ["Popen", "system", "execv", "fork", "forkpty", "posix_spawn", "popen", "spawn"]
    assert done.stdout.splitlines() == [f"{name} refused" for name in names]


def test_what_ends_a_download(make_wheel: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel("pkg", "1.0", {"pkg.py": f"DATA = '{os.urandom(50_000).hex()}'"})
    monkeypatch.setenv("PYTHONPATH", os.devnull)  # pip in a process of its own, as all runs of users are

    def fetch(number: int, **options: Any) -> Path:
        folder = tmp_path / str(number)
        folder.mkdir()
        return download("pkg", "", folder, **options)

    assert fetch(1).name == "pkg-1.0-py3-none-any.whl"
    with pytest.raises(AbsentError, match="its archive has more than 0 MiB"):
        fetch(2, max_bytes=20_000)
    with pytest.raises(RetryableError, match="pip took more than 0 s"):
        fetch(3, max_seconds=0.001)
    (tmp_path / "pip.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match="pip was ended from outside; run again"):
        fetch(4)


def test_the_newest_release(
    make_wheel: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wheel("pkg", "1.10", FILES)
    make_wheel("pkg", "1.9", FILES)
    assert open_source("pkg").name == "pkg@1.10"
    monkeypatch.setenv("PIP_FIND_LINKS", os.devnull)
    assert open_source("pkg").name == "pkg@1.10"
    assert "using 1.10 from the cache" in capsys.readouterr().err


def test_what_is_pinned(make_wheel: Make, index: Path) -> None:
    wheel = make_wheel("pkg", "1.0", FILES)
    digest = open_source("pkg@1.0").digest
    assert open_source("pkg@1.0", digest=["0" * 64, digest]).digest == digest
    wheel.unlink()
    make_wheel("pkg", "1.0", {**FILES, "pkg/version.py": "cuda = None\n"})
    said = rf"pkg@1\.0: its Python files have the digest [0-9a-f]{{64}}, not the pinned {'0' * 64}"
    with pytest.raises(UserError, match=said):
        open_source("pkg@1.0", digest="0" * 64)
    assert open_source("pkg@1.0", digest=digest).digest == digest  # the other build is still there


def test_no_such_release(make_wheel: Make) -> None:
    for version in ("0.9", "1.0", "1.1"):
        make_wheel("pkg", version, FILES)
    with pytest.raises(UserError, match=r"^pkg@1\.2: no such release; newest ones: 0\.9, 1\.0, 1\.1$"):
        open_source("pkg@1.2")
    with pytest.raises(UserError, match=r"^pkk@1\.0: no package of this name .*check the spelling"):
        open_source("pkk@1.0")
    with pytest.raises(UserError, match=r"^pkk: no package of this name"):
        open_source("pkk")


def test_metadata_that_pip_rejects(make_wheel: Make, make_sdist: Make, tmp_path: Path) -> None:
    """Where a release has an sdist, too, that is read instead: pip reads no metadata of it here."""
    invalid = "License: MIT\nRequires-Dist: numpy (<0.19.0>=0.16.1)\n"
    make_wheel("pkg", "1.0", FILES, invalid)
    (tmp_path / "wheels").mkdir()
    with pytest.raises(NoWheelError):  # upon which the runtime of blocks looks for an sdist
        download("pkg", "==1.0", tmp_path / "wheels")
    with pytest.raises(UserError, match=r"^pkg@1\.0: pip rejects the metadata of this release"):
        open_source("pkg@1.0")
    make_sdist("pkg", "1.0", {**FILES, "setup.py": ""}, invalid)
    source = open_source("pkg@1.0")
    assert [file.module for file in source.files] == ["pkg", "pkg.layers.se"]


def test_an_index_that_cannot_be_reached(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(RetryableError, match=r"^pkg@1\.0: the package index cannot be reached"):
        open_source("pkg@1.0")


STATED = [("Name: other\nVersion: 1.0\n", "what was fetched is other 1.0"), ("Name: pkg\n", "states no version")]


@pytest.mark.parametrize(("metadata", "said"), STATED)
def test_a_release_that_is_not_what_it_says(make_sdist: Make, index: Path, metadata: str, said: str) -> None:
    make_sdist("pkg", "1.0", {**FILES, "setup.py": "", "PKG-INFO": f"Metadata-Version: 2.1\n{metadata}"})
    with pytest.raises(UserError, match=rf"pkg@1\.0: .*{said}"):
        open_source("pkg@1.0")


def test_a_release_without_code(make_wheel: Make) -> None:
    make_wheel("pkg", "1.0", {"tests/test_all.py": "", "data.json": "{}"})
    with pytest.raises(UserError, match=r"^pkg@1\.0: holds no Python code"):
        open_source("pkg@1.0")


def test_a_hostile_wheel(make_wheel: Make, cache: Path) -> None:
    make_wheel("pkg", "1.0", {**FILES, "../../evil.py": ""})
    with pytest.raises(UserError, match=r"pkg-1\.0.*'\.\./\.\./evil\.py', which leads out"):
        open_source("pkg@1.0")
    assert not list(cache.rglob("*.py"))


def test_not_a_package() -> None:
    for spec in ("pkg@", "pkg@not-a-version", "pkg@1.0@2", "-pkg", "pkg --index-url=x", "pkg[extra]", ""):
        with pytest.raises(UserError, match=r"is not a version|not a source"):
            open_source(spec)
