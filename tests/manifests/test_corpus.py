"""Corpora: the shipped ones are whole and pinned; a faulty one is refused in one line that says where."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lemur_core.files.errors import UserError
from manifests.provenance.licenses import is_permissive
from manifests.records.corpus import FOLDER, Corpus, corpus_names, load_corpus
from tests.builders.suites import table

DIGEST = "0" * 64
ENTRY = {"name": "one", "source": "one@1.0", "digest": DIGEST}
PINNED = re.compile(r"[a-z0-9-]+@[0-9]+(?:\.[0-9]+)*|git\+https://github\.com/[\w.-]+/[\w.-]+@[0-9a-f]{40}")


def corpus(**changes: Any) -> dict[str, Any]:
    return {"name": "mine", "sources": [{**ENTRY, **changes}]}


def test_shipped() -> None:
    assert corpus_names() == ["paper", "paper-full", "quick"]


@pytest.mark.parametrize("name", corpus_names())
def test_shipped_corpora_are_pinned(name: str) -> None:
    loaded = load_corpus(name)
    assert loaded.name == name
    for source in loaded.sources:
        assert source.license != "NOASSERTION"
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", source.repository)
        for place in (source, source.alternative):
            if place is not None:
                assert PINNED.fullmatch(place.source)
                assert place.digest
                assert place is source or place.source.startswith("git+") != source.source.startswith("git+")


def test_the_paper_has_its_22_repositories() -> None:
    paper, full = load_corpus("paper"), load_corpus("paper-full")
    assert len({source.repository for source in paper.sources}) == len(paper.sources) == 22
    assert [source.name for source in full.sources] == [source.name for source in paper.sources]
    assert all(source.paths for source in paper.sources)
    assert not any(source.paths or source.exclude for source in full.sources)
    assert {source.priority for source in paper.sources} == {1, 2}
    strict = sorted(source.name for source in paper.sources if not is_permissive(source.license))
    assert strict == ["mae", "ultralytics", "yolov5", "yolov7", "yolov9"]


def test_every_shipped_file_is_as_the_model_writes_it() -> None:
    for name in corpus_names():
        text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
        written = load_corpus(name).model_dump(mode="json", exclude_defaults=True)
        assert {**written, "sources": [{"priority": 1, **source} for source in written["sources"]]} == json.loads(text)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(corpus(digest=[DIGEST, "1" * 64], paths=["a/*"])))
    loaded = load_corpus(str(path))
    assert isinstance(loaded, Corpus)
    assert loaded.sources[0].digest == (DIGEST, "1" * 64)
    assert loaded.sources[0].priority == 1


@table(__file__, "corpus.md", "What is no corpus", globals())
def test_what_is_no_corpus(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=said) as raised:
        load_corpus(str(path))
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(f"{path}: not a corpus: ")


@pytest.mark.parametrize("name", ["papers", "nowhere/mine.json", ""])
def test_unknown(name: str) -> None:
    with pytest.raises(UserError, match=r"paper, paper-full, quick|is a directory|cannot be read"):
        load_corpus(name)
