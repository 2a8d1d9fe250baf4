"""The symbols of a corpus select classes of each source, without another index; on a real small package."""

import json
from pathlib import Path

import pytest

from extract.extractor import BlockExtractor

TINY = Path(__file__).parents[2] / "fixtures" / "extract" / "tinyvision"


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
    path, source = tmp_path / "corpus.json", {"name": "tiny", "source": str(TINY), "symbols": symbols}
    path.write_text(json.dumps({"name": "mine", "sources": [source]}))
    with BlockExtractor(str(path), level="discovered", jobs=1) as extractor:
        assert [found.name for found in extractor.warm_index_once()] == names
        told = "tiny: none of its classes is called *net, as the corpus asks; see its symbols"
        assert extractor.facts.notes == ([] if names else [told])
