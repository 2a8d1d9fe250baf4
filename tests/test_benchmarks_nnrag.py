"""The judge of the comparison with nn-rag: it must see each fault that it is there to see."""

from pathlib import Path

import pytest

from extract.sources import Source, open_source

ROOT = Path(__file__).parent.parent

_ORIGINAL = """
import torch
from torch import nn
from origin.helpers import scale

class Gate(nn.Module):
    @property
    def width(self):
        return 1

    def forward(self, x):
        return scale(x)
"""
_CLOSED = """
import torch
from torch import nn

def scale(x):
    return x

class Gate(nn.Module):
    @property
    def width(self):
        return 1

    def forward(self, x):
        return scale(x)
"""


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    package = tmp_path / "repository" / "origin"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "helpers.py").write_text("def scale(x):\n    return x\n")
    (package / "gate.py").write_text(_ORIGINAL)
    return open_source(str(tmp_path / "repository"))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("", ""), None),
        (("return scale(x)", "return scale_by(x)"), "undefined"),
        (("import torch\n", "import torch\nif torch is None:\n    import origin.helpers\n"), "foreign"),
        (("import torch\n", "import torch\nif torch is None:\n    from . import helpers\n"), "foreign"),
        (("def scale(x):", "scale(None)\ndef scale(x):"), "runs"),
        (("class Gate(", "class Gates("), "is_class"),
        (("class Gate(nn.Module)", "class Gate(object)"), "is_module"),
        (("    @property\n", ""), "decorators_kept"),
        (("def scale(x):", "def scale(x:"), "runs"),
        (("def scale(x):", "import sys\nsys.exit(0)\ndef scale(x):"), "runs"),
    ],
)
def test_each_fault_is_seen(source: Source, change: tuple[str, str], fault: str | None) -> None:
    from benchmarks.nnrag_judge import judge, read_originals

    originals = read_originals([source], ["Gate"])
    assert originals.packages == {"origin"}
    code = _CLOSED.replace(*change, 1) if change[0] else _CLOSED
    judged = judge({"Gate": code}, originals, None, 1)["Gate"]
    good = {
        "runs": judged.runs,
        "is_class": judged.is_class,
        "is_module": judged.is_module,
        "undefined": not judged.undefined,
        "foreign": not judged.foreign,
        "decorators_kept": judged.decorators_kept,
    }
    assert judged.closed == (fault in (None, "decorators_kept"))
    assert all(good.values()) if fault is None else not good[fault], (good, judged.error)


def test_names_are_spread_over_the_list() -> None:
    from benchmarks.versus_nnrag import _spread

    assert _spread(list("abcdef"), 3) == ["a", "c", "e"]
    assert _spread(list("abc"), None) == _spread(list("abc"), 9) == ["a", "b", "c"]


def test_the_peer_finds_our_files_in_its_cache(source: Source, tmp_path: Path) -> None:
    from benchmarks.nnrag_peer import _fill
    from manifests.corpus import Corpus, CorpusSource

    entry = CorpusSource(name=source.name, repository="owner/origin", source=str(source.root), priority=2)
    absent = CorpusSource(name="absent", repository="owner/absent", source="absent@1")
    config = _fill(tmp_path / "cache", Corpus(name="one", sources=(entry, absent)), [source])
    assert list(config) == ["owner/origin"]
    assert (tmp_path / "cache" / "repo_cache" / "owner_origin" / "origin" / "gate.py").read_text() == _ORIGINAL
