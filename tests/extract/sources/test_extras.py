"""A package that an extra of the metadata names is fetched where a class says that it needs it."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from extract.extractor import BlockExtractor
from extract.proofs.rebuild import is_sampled

SETTINGS = "[project]\nname='vis'\n[project.optional-dependencies]\nimage=['tinyops>=1']\nother=['elsewhere']\n"
TRIED = "try:\n    import tinyops\nexcept ImportError:\n    tinyops = None\n"
SEARCHED = "from importlib.util import find_spec\nif find_spec('tinyops'):\n    import tinyops\n    HAS = True\nelse:\n    HAS = False\n"
SAYS = "        if not HAS: raise ImportError('Please pip install vis[image].')\n"


def write(folder: Path, code: str) -> None:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(SETTINGS)
    (folder / "a.py").write_text(f"from torch import nn\n{code}")


@pytest.mark.slow
@pytest.mark.usefixtures("index")  # an empty one
@pytest.mark.parametrize(("head", "check"), [(SEARCHED, SAYS), (TRIED, "")])
def test_a_package_of_an_extra_that_cannot_be_had(tmp_path: Path, head: str, check: str) -> None:
    made = f"{head}class Twice(nn.Module):\n    def __init__(self):\n        super().__init__()\n{check}"
    write(tmp_path / "vis", f"{made}    def forward(self, x): return tinyops.twice(x)\n")
    with BlockExtractor(sources=[str(tmp_path / "vis")], level="forward", jobs=1) as extractor:
        row = extractor.extract_single_block("Twice").row
    assert row.level in {"executed", "constructed"}
    assert (row.error_kind, row.requires) == ("missing_extra: image", ())


@pytest.mark.slow
def test_blocks_with_an_extra_are_counted_with_the_others(tmp_path: Path, make_wheel: Callable[..., Path]) -> None:
    make_wheel("tinyops", "1.2", {"tinyops.py": "def twice(x): return 2 * x\n"})
    plain = next(name for name in map("Plain{}".format, itertools.count()) if is_sampled(f"vis::a.{name}"))
    twice = f"{TRIED}class Twice(nn.Module):\n    def forward(self, x): return tinyops.twice(x)\n"
    write(tmp_path / "vis", f"{twice}class {plain}(nn.Module):\n    def forward(self, x): return x + 1\n")
    with BlockExtractor(sources=[str(tmp_path / "vis")], jobs=1) as extractor:
        rows = [result.row for result in extractor.extract_multiple_blocks(["Twice", plain])]
    assert [(row.name, row.level, row.requires) for row in rows] == [
        ("Twice", "backward", ("tinyops",)),
        (plain, "backward", ()),
    ]
    assert extractor.facts.details["rebuilt"]["specs"] == 1 + is_sampled("vis::a.Twice")
