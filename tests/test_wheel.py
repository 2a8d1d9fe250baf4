"""The wheel in a clean environment of another Python: data files come along, and the decisions are the same bytes.

By text alone: PyTorch lies there without what it needs, gigabytes that nothing here loads.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
_HEAVY = ("torch", "torchvision")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy: a build leaves files behind."""
    if shutil.which("uv") is None:
        pytest.skip("needs uv, which makes environments of other Pythons")
    place = tmp_path_factory.mktemp("wheel")
    kept = shutil.ignore_patterns(".*", "tests", "build", "*.egg-info", "__pycache__", "snapshot")
    shutil.copytree(ROOT, place / "source", ignore=kept)
    run("uv", "build", "-q", "--wheel", "-o", place, place / "source")
    return next(place.glob("*.whl"))


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_data_file_is_in_the_wheel() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    globs = [(package.replace(".", "/"), glob) for package, some in declared["package-data"].items() for glob in some]
    packed = {str(path.relative_to(ROOT)) for folder, glob in globs for path in (ROOT / folder).glob(glob)}
    packages = [name.rstrip("*") for name in declared["packages"]["find"]["include"] if "." not in name]
    kept = run("git", "ls-files", *packages, cwd=ROOT).splitlines()
    assert {name for name in kept if not name.endswith(".py")} <= packed


@pytest.mark.network
@pytest.mark.slow
def test_another_python_decides_the_same(wheel: Path, real_codes: list[str], tmp_path: Path) -> None:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    python = max(pyenv.glob("3.13.*/bin/python"), default=shutil.which("python3.13"))
    if python is None:
        pytest.skip("no Python 3.13 on this machine")
    made = tmp_path / "env"
    run("uv", "venv", "-q", "--python", python, made)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    needed = [text for text in declared if Requirement(text).name not in _HEAVY]
    run("uv", "pip", "install", "-q", "--python", made / "bin/python", *needed)
    run("uv", "pip", "install", "-q", "--python", made / "bin/python", "--no-deps", wheel, *_HEAVY)
    networks = tmp_path / "networks"
    networks.mkdir()
    for number, code in enumerate(real_codes[:120]):
        (networks / f"net-{number}.py").write_text(code, encoding="utf-8")
    (networks / "broken.py").write_text("def (:\n", encoding="utf-8")
    for lemur, out in ((made / "bin" / "lemur", "theirs"), (Path(sys.executable).with_name("lemur"), "ours")):
        cache = {**os.environ, "LEMUR_CURATOR_CACHE": str(tmp_path / f"cache-{out}")}
        command = [str(lemur), "curate", str(networks), "--graph", "off", "--license", "MIT", "--out", out]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=cache)
        assert done.returncode == 0, done.stderr
    tables = sorted(path.relative_to(tmp_path / "ours") for path in (tmp_path / "ours").rglob("*.parquet"))
    assert tables
    for table in tables:
        assert (tmp_path / "theirs" / table).read_bytes() == (tmp_path / "ours" / table).read_bytes(), table
    assert "ok" in run(Path(sys.executable).with_name("lemur"), "verify", "theirs", cwd=tmp_path)
