"""The judge of the comparison with nn-rag: it must see each fault that it is there to see."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from extract.sources import PackageSource, open_source
from tests.builders.suites import read_files

ROOT = Path(__file__).parent.parent

TEXTS = read_files(__file__, "benchmarks_nnrag.md")
_ORIGINAL = TEXTS["_ORIGINAL"]
_CLOSED = TEXTS["_CLOSED"]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def make_source(folder: Path, files: Mapping[str, str]) -> PackageSource:
    package = folder / "repository" / "origin"
    package.mkdir(parents=True)
    for name, text in {"__init__.py": "", "helpers.py": "def scale(x):\n    return x\n", **files}.items():
        (package / name).write_text(text)
    return open_source(str(folder / "repository"))


#: What is changed in a closed file, and the first thing that must then not be true of it.
_FAULTS = [
    ("", "", ""),
    ("return scale(x)", "return scale_by(x)", "defined"),
    ("import torch\n", "import torch\nif torch is None:\n    import origin.helpers\n", "own"),
    ("import torch\n", "import torch\nif torch is None:\n    from . import helpers\n", "own"),
    ("def scale(x):", "scale(None, None)\ndef scale(x):", "runs"),
    ("def scale(x):", "def scale(x:", "runs"),
    ("def scale(x):", "import sys\nsys.exit(0)\ndef scale(x):", "runs"),
    ("class Gate", "class Gates", "is_class"),
    ("(nn.Module)", "(object)", "is_module"),
    ("    @property\n", "", "decorators_kept"),
]


def test_each_fault_is_seen(tmp_path: Path) -> None:
    from benchmarks.nnrag_judge import judge, read_originals

    names = [f"Gate{number}" for number in range(len(_FAULTS))]
    source = make_source(tmp_path, {f"gate{n}.py": _ORIGINAL.replace("Gate", name) for n, name in enumerate(names)})
    originals = read_originals([source], names)
    assert originals.packages == {"origin"}
    changed = zip(names, _FAULTS, strict=True)
    codes = {name: _CLOSED.replace(old, new, 1).replace("Gate", name) for name, (old, new, _) in changed}
    judged = judge({name: code.replace(f"{name}s", "Other") for name, code in codes.items()}, originals, None, 2)
    for name, (_, new, fault) in zip(names, _FAULTS, strict=True):
        file = judged[name]
        true = {
            "runs": file.runs,
            "is_class": file.is_class,
            "is_module": file.is_module,
            "defined": not file.undefined,
            "own": not file.foreign,
            "decorators_kept": file.decorators_kept,
        }
        assert next((fact for fact, holds in true.items() if not holds), "") == fault, (new, file)
        assert file.closed == (fault in ("", "decorators_kept")), (new, file)


def test_names_are_spread_over_the_list() -> None:
    from benchmarks.versus_nnrag import _spread

    assert _spread(list("abcdef"), 3) == ["a", "c", "e"]
    assert _spread(list("abc"), None) == _spread(list("abc"), 9) == ["a", "b", "c"]


def test_the_peer_finds_our_files_in_its_cache(tmp_path: Path) -> None:
    from benchmarks.nnrag_peer import _fill
    from manifests.records.corpus import Corpus, CorpusSource

    source = make_source(tmp_path, {"gate.py": _ORIGINAL})
    entry = CorpusSource(name=source.name, repository="owner/origin", source=str(source.root), priority=2)
    absent = CorpusSource(name="absent", repository="owner/absent", source="absent@1")
    config = _fill(tmp_path / "cache", Corpus(name="one", sources=(entry, absent)), [source])
    assert list(config) == ["owner/origin"]
    assert (tmp_path / "cache" / "repo_cache" / "owner_origin" / "origin" / "gate.py").read_text() == _ORIGINAL
