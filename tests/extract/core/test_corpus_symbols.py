"""The symbols of a corpus select classes of each source, without another index; on a real small package."""

import json
from pathlib import Path
from typing import Any

import pytest

from extract.extractor import BlockExtractor, extract_to
from extract.model.results import Options
from lemur_core.files.errors import UserError
from manifests.folders.manifest import read_manifest

TINY = Path(__file__).parents[2] / "fixtures" / "extract" / "tinyvision"


def corpus(folder: Path, **changes: Any) -> str:
    path = folder / "corpus.json"
    path.write_text(json.dumps({"name": "mine", "sources": [{"name": "tiny", "source": str(TINY), **changes}]}))
    return str(path)


@pytest.mark.parametrize(
    ("symbols", "names"),
    [
        ([], ["SqueezeExcite", "TokenMixer", "LostNet", "TinyNet"]),
        (["*Net"], ["LostNet", "TinyNet"]),
        (["tinyvision.layers.*"], ["SqueezeExcite", "TokenMixer"]),
        (["Squeeze*", "TinyNet"], ["SqueezeExcite", "TinyNet"]),
        (["*net"], []),
    ],
)
def test_symbols_choose(tmp_path: Path, symbols: list[str], names: list[str]) -> None:
    with BlockExtractor(corpus(tmp_path, symbols=symbols), level="discovered", jobs=1) as extractor:
        assert [found.name for found in extractor.warm_index_once()] == names
        told = "tiny: none of its classes is called *net, as the corpus asks; see its symbols"
        assert extractor.facts.notes == ([] if names else [told])


def test_a_name_outside_of_the_symbols_leaves_no_note_about_some_files(tmp_path: Path) -> None:
    """The files that define the name are read first; what is said follows from all files."""
    with BlockExtractor(corpus(tmp_path, symbols=["TinyNet"]), level="discovered", jobs=1) as extractor:
        with pytest.raises(UserError, match="SqueezeExcite: no class of that name"):
            extractor.extract_multiple_blocks(["SqueezeExcite"])
        assert extractor.facts.notes == []


def test_symbols_and_the_folder(tmp_path: Path) -> None:
    """Code outside of them is still available to the selected classes; the manifest records the request."""
    path = corpus(tmp_path, symbols=["TinyNet"])
    extract_to(tmp_path / "out", Options(corpus=path, level="emitted", jobs=1))
    manifest = read_manifest(tmp_path / "out")
    assert manifest.counts["reached"]["emitted"] == 1
    assert manifest.details["sources"][0]["symbols"] == ["TinyNet"]
    (file,) = (tmp_path / "out" / "blocks").rglob("*.py")
    assert "class SqueezeExcite" in file.read_text()
