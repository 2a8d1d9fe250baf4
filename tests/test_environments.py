"""What is declared is what is imported and what the lock holds; environments of links to what is installed here."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from packaging.pylock import Pylock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lemur_core.sandbox.runtime import Runtime, find_runtime
from tests.builders import synthesis
from tests.test_floors import FLOORS, imports_of, list_files

ROOT = Path(__file__).parents[1]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def write_code(width: int, activation: str) -> str:
    return synthesis.network(width=width, use=f"x = {activation}(x)")


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
