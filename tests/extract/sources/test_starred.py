"""Packages of which a source imports all names are read, too."""

from pathlib import Path

import pytest

from extract import BlockExtractor
from extract.resolve import starred
from extract.sources import PackageSource, open_source
from lemur_core.files.errors import UserError

FILES = {
    "net/pyproject.toml": '[project]\nname = "net"\nversion = "1"\ndependencies = ["many-parts>=1", "torch"]\n',
    "net/model.py": """\
from math import *
from many_parts.gates import *
from of_nobody import *

class Net(Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate(4)

    def forward(self, x):
        return self.gate(x) * floor(pi)
""",
    "many-parts/many_parts/gates.py": """\
from torch.nn import Linear, Module

class Gate(Module):
    def __init__(self, width):
        super().__init__()
        self.weigh = Linear(width, width)

    def forward(self, x):
        return x * self.weigh(x).sigmoid()
""",
}


@pytest.fixture
def places(tmp_path: Path, curator_cache: Path) -> Path:
    """The folder of a source, and that of a package that it requires."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_what_a_block_needs_of_them_is_copied(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def open_from_disk(spec: str) -> PackageSource:
        asked.append(spec)
        return open_source(str(places / spec))

    monkeypatch.setattr(starred, "open_source", open_from_disk)
    with BlockExtractor(sources=[str(places / "net")], level="forward", jobs=1) as extractor:
        assert [item.name for item in extractor.warm_index_once()] == ["Net"], "no class of it is a block"
        row = extractor.extract_single_block("Net").row
        notes = extractor.facts.notes
    assert asked == ["many-parts"], "nothing is asked for that no metadata requires"
    assert (row.level, row.error) == ("forward", None)
    assert row.code is not None
    assert "class Gate(" in row.code
    assert "many_parts" not in row.code.partition('"""\n\n')[2]
    assert "net model.py imports all names of many_parts, so many-parts is read, too" in notes


def test_one_that_cannot_be_opened_is_told(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_spec: str) -> PackageSource:
        raise UserError("no release of that name")

    monkeypatch.setattr(starred, "open_source", refuse)
    with BlockExtractor(sources=[str(places / "net")], jobs=1) as extractor:
        with pytest.raises(UserError, match=r"net::model\.Net is not known to be a torch"):
            extractor.extract_single_block("Net")
        notes = extractor.facts.notes
    assert "net model.py imports all names of many_parts, which cannot be read: no release of that name" in notes
