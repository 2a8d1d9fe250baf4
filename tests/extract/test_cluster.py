"""Extraction in tasks equals in-process extraction, byte by byte; the last step finds all results in the cache."""

import os
from collections import deque
from pathlib import Path

import pytest

pytest.importorskip("datatrove", reason="needs the extra cluster")

from extract.cluster import _ExtractionRequest, _list_steps
from extract.extractor import BlockExtractor, extract_to
from extract.model.results import Options
from extract.resolve.discover import select
from lemur_core.distributed.exchange import Exchange, run_part
from lemur_core.files.errors import UserError
from tests.builders.suites import read_files

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")]


TEXTS = read_files(__file__, "cluster.md")
GATES = TEXTS["GATES"]
BLOCKS = TEXTS["BLOCKS"]


def files(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder except the two that contain run times."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("manifest.json", "report.md"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_tasks_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("gates", GATES), ("blocks", BLOCKS)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "layers.py").write_text(text)
    options = Options(sources=tuple(str(tmp_path / name) for name in ("gates", "blocks")), jobs=1)
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "one cache"))
    extract_to(tmp_path / "at once", options)
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "another cache"))
    with BlockExtractor(sources=options.sources, jobs=1) as extractor:
        digests = {source.name: source.digest for source in extractor.facts.sources}
    request = _ExtractionRequest(options, digests, tmp_path / "in tasks", False)
    *slices, write = _list_steps(Exchange(tmp_path / "work"), request, 3)
    assert [step.name for step in slices] == ["emit", "sources"]
    for step in slices:
        for rank in reversed(range(step.tasks)):  # the last slice has nothing to do
            run_part(step, rank)
    with BlockExtractor(sources=options.sources, jobs=1) as extractor:
        deque(extractor.extract(select(extractor.warm_index_once(), options.selection)), maxlen=0)
        assert (extractor.facts.validations_run, extractor.facts.validations_reused) == (0, 3)
    write.run(0, write.tasks)
    assert files(tmp_path / "in tasks") == files(tmp_path / "at once")
    (tmp_path / "blocks" / "layers.py").write_text(BLOCKS + "\n")
    with pytest.raises(UserError, match=r"^blocks: has changed since the run began; start again, with another --work$"):
        run_part(write, 0)
