"""What else is installed changes nothing: the same bytes in an environment of what is declared, and in a fuller one."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.pylock import Pylock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lemur_core.sandbox.runtime import Runtime, find_runtime
from tests.builders import synthesis
from tests.test_floors import FLOORS, imports_of, list_files

ROOT = Path(__file__).parents[1]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def write_code(width: int | str, activation: str, first: str = "") -> str:
    return synthesis.network(head=f"{synthesis.HEAD}{first}\n", width=width, use=f"x = {activation}(x)")


#: Networks that ask for packages which one of the environments has, by import and by a look at what is there.
CODES = {
    "plain": write_code(8, "torch.relu"),
    "einops": write_code(12, "torch.tanh", "from einops import rearrange"),
    "transformers": write_code(16, "nn.functional.gelu", "import transformers"),
    "optional": write_code("W", "torch.sigmoid", "try:\n    import einops\n    W = 64\nexcept ImportError:\n    W = 8"),
    "looks": write_code("W", "torch.sin", "import importlib.util\nW = 96 if importlib.util.find_spec('transformers') else 24"),
    "metadata": write_code("W", "torch.cos", "import importlib.metadata as m\nW = len(list(m.distributions()))"),
}  # fmt: skip


def make_environment(folder: Path, names: Iterable[str], without: Container[str] = ()) -> Path:
    """An environment that holds the product and these packages with what they need: links to what is installed here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    found = find_runtime(("lemur-curator", *names)).folders
    kept = {name: place for name, place in found.items() if name not in without}
    for name, target in Runtime({}, kept).links().items():
        (site / name).parent.mkdir(exist_ok=True)
        if not (site / name).exists():
            (site / name).symlink_to(target)
    return folder / "bin" / "python"


def make_row(name: str, code: str, **prm: Any) -> str:
    row = {"nn": name, "nn_code": code, "task": "img-classification", "dataset": "cifar-10", "metric": "acc"}
    prm |= {"lr": 0.1, "momentum": 0.9}
    return json.dumps(row | {"epoch": 1, "accuracy": 0.5, "duration": 1, "prm": json.dumps(prm)}) + "\n"


@pytest.mark.slow
def test_a_fuller_environment_of_another_place_gives_the_same_bytes(tmp_path: Path) -> None:
    rows = "".join(make_row(name, code, transform="norm_32") for name, code in CODES.items())
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    declared = [Requirement(text).name for text in DECLARED["dependencies"]]
    made: dict[str, Path] = {}
    fuller = ("einops", "transformers", "hypothesis", "psutil", "pandas")
    elsewhere = {"PYTHONHASHSEED": "7", "TZ": "Pacific/Apia", "LC_ALL": "C", "COLUMNS": "40"}
    for name, further, settings in (("declared", (), {}), ("fuller", fuller, elsewhere)):
        python = make_environment(tmp_path / name, (*declared, *further))
        seen = subprocess.run([python, "-P", "-c", "import einops, transformers"], check=False, capture_output=True)
        assert (seen.returncode == 0) == bool(further), "the environments differ in this"
        made[name] = tmp_path / f"snapshot-{name}"
        command = [python, "-P", "-c", "import lemur; lemur.main()", "curate", "rows.jsonl", "--graph", "all"]
        done = subprocess.run(
            [*command, "--out", made[name], "--jobs", "2" if further else "1"],
            cwd=tmp_path,
            env={**os.environ, **settings, "LEMUR_CURATOR_CACHE": str(tmp_path / f"cache-{name}")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    files = sorted(path.relative_to(made["declared"]) for path in made["declared"].rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(made["fuller"]) for path in made["fuller"].rglob("*") if path.is_file())
    for file in files:
        ours, theirs = ((made[name] / file).read_bytes() for name in ("declared", "fuller"))
        if file.name == "manifest.json":
            ours, theirs = ({**json.loads(text), "measured": None} for text in (ours, theirs))
            assert ours["counts"]["graphs"]["missing_packages"] == {"einops": 1, "transformers": 1}
            assert ours["versions"]["torch"]
        if "page" not in file.parts and file.name not in ("index.html", "report.md"):
            assert ours == theirs, file


def test_every_import_of_the_product_is_declared() -> None:
    """Also what another dependency brings today: it may not tomorrow."""
    extras = [text for name, texts in DECLARED["optional-dependencies"].items() if name != "dev" for text in texts]
    declared = {canonicalize_name(Requirement(text).name) for text in (*DECLARED["dependencies"], *extras)}
    names = {name.partition(".")[0] for path in list_files(*FLOORS) for name in imports_of(path)}
    foreign = names - {*FLOORS, *sys.stdlib_module_names, "_typeshed"}  # the last is for type checkers
    distributions = {"PIL": "pillow", "yaml": "pyyaml", "kingfisher_sdk": "kingfisher-secret-scanner"}
    assert "pyarrow" in foreign
    assert {canonicalize_name(distributions.get(name, name)) for name in foreign} - declared == set()


def test_the_lock_is_what_is_installed_by_and_holds_all() -> None:
    """Both files name the same releases; the lock is valid by PEP 751 and names no index."""
    text = (ROOT / "pylock.toml").read_text(encoding="utf-8")
    lock = Pylock.from_dict(tomllib.loads(text))
    lock.validate()
    locked = {package.name: str(package.version) for package in lock.packages}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if not line.startswith("#")]
    specifiers = {canonicalize_name(requirement.name): [*requirement.specifier] for requirement in pinned}
    assert {item.operator for (item,) in specifiers.values()} == {"=="}
    constraints = {name: item.version for name, (item,) in specifiers.items()}
    assert locked.items() <= constraints.items()
    assert {"torch", "torchvision", "numpy", "pyarrow"} <= locked.keys()
    assert "://" not in text
    extras = DECLARED["optional-dependencies"].values()
    for text in (*DECLARED["dependencies"], *(text for extra in extras for text in extra)):
        requirement = Requirement(text)
        version = constraints[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{text}: run make lock"
