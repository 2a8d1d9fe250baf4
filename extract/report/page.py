"""The report of an extraction: `report.md`, with figures beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.report import sections
from extract.report.failures import failures_of
from extract.report.figures import draw_figures
from manifests.manifest import Measured
from manifests.records import Block

if TYPE_CHECKING:
    from extract.folder import RunFacts
    from lemur_core.similarity.distinct import Distinct

_CAPTIONS = {
    "sources": "Highest rung of each source's classes, as shares; beside the name, how many classes it has.",
    "failures": "Classes that came no further, by category.",
    "sizes": "Lines of the closed files.",
}


def write_report(
    folder: Path,
    rows: Sequence[Block],
    files: Mapping[str, int],
    facts: "RunFacts",
    counts: Mapping[str, Any],
    structures: "Distinct",
    measured: Measured,
) -> None:
    """Write `report.md` and `figures/*.png` into `folder`; all but the section "This run" is the same in every run.

    Args:
        files: of how many files each block was made.
        counts: of `extract.counts.count_rows`.
        structures: of the executed blocks.
        measured: up to here.
    """
    failures = failures_of(rows)
    drawn = draw_figures(folder / "figures", rows, counts, sections.goal_of(facts.level))
    numbers = {figure: place for place, figure in enumerate(drawn, start=1)}

    def figure(key: str) -> list[str]:
        if key not in drawn:
            return []
        caption = f"Figure {numbers[key]}. {_CAPTIONS[key]}"
        return [f"![{caption}](figures/{drawn[key]})", "", f"*{caption}*", ""]

    lines = [
        *sections.head(facts, counts),
        *sections.rungs(facts, counts),
        *sections.targets(facts, counts),
        *sections.distinct(structures),
        *sections.by_group("By source", "source", counts["sources"], facts),
        *figure("sources"),
        *sections.unopened(facts),
        *sections.by_group(
            "By category",
            "category",
            counts["categories"],
            facts,
            intro="What a class is for is told from its names, by the rules in `extract/categories.py`.",
        ),
        *sections.failures(failures, counts["blocks"]),
        *figure("failures"),
        *sections.sizes(rows, files),
        *figure("sizes"),
        *sections.smaller(counts),
        *sections.this_run(facts, rows, measured),
        "## Single blocks",
        "",
        "`blocks.parquet` has one row for every class, and why it came no further; `lemur show BLOCK --in DIR` shows"
        " one with its code. `required_repos.json` says what each closed file needs, and where its parts came from.",
        "",
        "`specs.jsonl` has one line for each closed file: what the block is and does, without its source;"
        " `lemur search QUERY --in DIR` searches it.",
    ]
    (folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
