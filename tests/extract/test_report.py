"""The report of an extraction matches the rows, whatever they contain."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.folder.page import summary_text
from lemur_core.files.markdown import code_span, make_visible, plain, table
from manifests.folders.manifest import read_manifest
from manifests.records import LEVELS
from tests.builders import extractions


@pytest.fixture
def sources(tmp_path: Path) -> Sequence[Any]:
    return [extractions.source(tmp_path, name) for name in ("alpha@1.0", "beta@2.0")]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("report")
    sources = [extractions.source(base, name) for name in ("alpha@1.0", "beta@2.0")]
    extractions.write(
        base / "out",
        extractions.results(sources),
        sources,
        unopened=(("gamma|x", "no such *release*"),),
        targets=("Attention", "Native", "Gone"),
        notes=["Gone: no class of that name"],
    )
    return base / "out"


def report(folder: Path) -> str:
    """Return the report after checking its Markdown: rectangular tables, valid links, nothing invisible."""
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert all(char.isprintable() or char == "\n" for char in text)
    width = 0
    for line in text.split("\n"):
        cells = line.count("|") if line.startswith("|") else 0
        assert not width or not cells or cells == width, line
        width = cells
    return text


def rows_of(text: str, title: str) -> list[list[str]]:
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


SECTIONS = {
    "By source": [
        ["alpha@1.0", "5", "4", "4", "4", "3", "60.0 %"],
        ["beta@2.0", "5", "4", "4", "4", "3", "60.0 %"],
        ["all", "10", "8", "8", "8", "6", "60.0 %"],
    ],
    "Why they came no further": [
        ["native\\_op", "'Native\\_op' is compiled (2 ×)", "alpha@1.0::alpha.blocks.Native", "2", "50.0 %"],
        ["runtime\\_error", "RuntimeError: no (2 ×)", "alpha@1.0::alpha.blocks.Broken", "2", "50.0 %"],
    ],
    "Sources that could not be opened": [["gamma&#124;x", "no such \\*release\\*"]],
}


def test_the_report_of_a_run(written: Path) -> None:
    text = report(written)
    assert {title: rows_of(text, title) for title in SECTIONS} == SECTIONS
    assert "**6 of 10 classes executed (60.0 %). From 2 sources" in text
    assert "- Gone: no class of that name\n" in text
    rungs = {cells[0]: cells[2:] for cells in rows_of(text, "How far they came")}
    assert tuple(rungs) == LEVELS[:5]
    assert rungs["compiled"] == ["8", "80.0 %", "2"]
    assert rungs["executed"] == ["6", "60.0 %", "0"]
    categories = [cells[:2] for cells in rows_of(text, "By category")]
    assert categories == [["Other", "8"], ["Attention", "2"], ["all", "10"]]


def test_runs_to_other_rungs_and_of_nothing(tmp_path: Path, sources: Sequence[Any]) -> None:
    made = [extractions.block(sources[0], name, "parsed", error_kind=None, error=None) for name in ("A", "B")]
    rows = list(map(extractions.Result, made))
    extractions.write(tmp_path / "out", rows, sources, level="parsed")
    text = report(tmp_path / "out")
    assert "**2 of 2 classes parsed (100 %). " in text
    assert [cells[0] for cells in rows_of(text, "How far they came")] == ["discovered", "emitted", "parsed"]
    assert [cells[-1] for cells in rows_of(text, "How far they came")] == ["0", "0", "0"]
    assert "Why they came no further" not in text
    levels = ("executed", "constructed", "forward")
    rows = [extractions.Result(extractions.block(sources[0], level.title(), level)) for level in levels]
    whole = {"error_kind": None, "error": None, "fidelity": "match"}
    rows.append(extractions.Result(extractions.block(sources[0], "Whole", "backward", **whole)))
    extractions.write(tmp_path / "higher", rows, sources, level="backward")
    text = report(tmp_path / "higher")
    assert "**4 of 4 classes executed (100 %). " in text
    assert rows_of(text, "By source")[0][1:6] == ["4", "4", "3", "2", "1"]
    assert rows_of(text, "Fidelity") == [["match", "1", "100 %"]]
    extractions.write(tmp_path / "nothing", [], sources, targets=("Gone",))
    assert "**0 of 0 classes executed (–). " in report(tmp_path / "nothing")


odd = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(odd, odd, odd)
def test_odd_names_and_messages_break_nothing(kind: str, error: str, license_: str) -> None:
    lines = table(["a", "b", "c"], [[code_span(kind), plain(error), code_span(license_)]])
    assert lines[2].count("|") == 4
    assert all(char.isprintable() for line in lines for char in line)
    assert "\n" not in make_visible(error)


def test_each_reason_has_its_commonest_message(tmp_path: Path, sources: Sequence[Any]) -> None:
    """Without its place; of equally common ones the first in order. The most common reason stands first."""
    errors = {"a": ["x"], "b": ["no a", "no b", "no b"], "c": ["s@1 f.py:3: 'x' is lost", "s@1 g.py:9: 'x' is lost"]}
    errors["d"] = [""]
    rows = [
        extractions.Result(extractions.block(sources[0], f"B{kind}{n}", "compiled", error_kind=kind, error=error))
        for kind, texts in errors.items()
        for n, error in enumerate(texts)
    ]
    extractions.write(tmp_path / "out", rows, sources)
    assert [cells[:4] for cells in rows_of(report(tmp_path / "out"), "Why they came no further")] == [
        ["b", "no b (2 ×)", "alpha@1.0::alpha.blocks.Bb1", "3"],
        ["c", "'x' is lost (2 ×)", "alpha@1.0::alpha.blocks.Bc0", "2"],
        ["a", "x", "alpha@1.0::alpha.blocks.Ba0", "1"],
        ["d", "(none)", "alpha@1.0::alpha.blocks.Bd0", "1"],
    ]


def test_the_summary(written: Path) -> None:
    lines = summary_text(read_manifest(written), Path("here")).split("\n")
    assert lines[0] == "10 classes of 2 sources"
    assert lines[4] == "  executed            6  60.0 %"
    assert "           2  native_op" in lines
    assert "  2 of 3 names found" in lines
    assert "  left out: gamma|x: no such *release*" in lines
    assert "  note: Gone: no class of that name" in lines
    assert re.fullmatch(r"here: [0-9.]+ s, [0-9,]+ MiB of memory; see report\.md", lines[-1])


def test_a_release_in_the_place_of_a_source(tmp_path: Path, sources: Sequence[Any]) -> None:
    """The score is named where readers look for it, and the paper's figures are shown separately."""
    wanted = "git+https://example.org/beta@abc"
    taken = [sources[0], dataclasses.replace(sources[1], instead_of=wanted)]
    manifest = extractions.write(tmp_path / "out", extractions.results(taken), taken)
    text = report(tmp_path / "out")
    part = text.partition("## Sources that stand in for others")[2].partition("\n## ")[0]
    assert "| beta@2.0 |" in part
    assert wanted in part
    (direct,) = [line for line in text.splitlines() if line.startswith("| reached directly")]
    (alpha,) = [line for line in text.splitlines() if line.startswith("| alpha@1.0")]
    assert direct.split("|")[2:] == alpha.split("|")[2:]
    assert f"`beta@2.0` (`{wanted}`)" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert [source["instead_of"] for source in manifest.details["sources"]] == ["", wanted]
    assert f"taken: beta@2.0 in the place of {wanted}" in summary_text(manifest, tmp_path / "out")
