"""The report of a curation: `report.md` and its figures, all counted from the decisions."""

from pathlib import Path

from curate.folder.report import records, sections
from curate.folder.report.arch_uid import arch_uid_section
from curate.folder.report.facts import gather_facts
from curate.folder.report.figures import draw_figures, draw_graphs
from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions
from curate.published.outcome import CurationOutcome
from lemur_core.files import Json

_CAPTIONS = {
    "funnel": "Codes that remain after each stage; in a light color, those removed.",
    "prefixes": "Networks by prefix before curation, and records kept.",
    "families": "Codes by architecture family before curation, and records kept.",
}


def write_report(
    folder: Path,
    corpus: LoadedRecords,
    outcome: CurationOutcome,
    counts: Json,
    options: CurateOptions,
    name: str,
) -> None:
    """Write `report.md` and `figures/*` into `folder`; the same outcome gives the same bytes.

    Args:
        counts: from `curate.published.outcome.count_decisions`.
        name: the name of the source.
    """
    facts = gather_facts(corpus, outcome)
    files = draw_figures(folder / "figures", facts)
    graphs = draw_graphs(folder / "figures", corpus, facts, outcome)
    files |= {key: f"{key}.svg" for key in graphs}
    captions = _CAPTIONS | graphs
    numbers = {figure: number for number, figure in enumerate(files, start=1)}

    def figure(key: str) -> list[str]:
        if key not in files:
            return []
        caption = f"Figure {numbers[key]}. {captions[key]}"
        return [f"![{caption}](figures/{files[key]})", "", f"*{caption}*", ""]

    lines = [
        *sections.report_head(name, facts, options, outcome),
        *sections.report_funnel(facts, options),
        *figure("funnel"),
        *sections.report_delta(facts, outcome),
        *sections.report_by_text(facts),
        *sections.report_by_group("By prefix", "prefix", "networks", facts.prefixes),
        *figure("prefixes"),
        *sections.report_by_group("By family", "family", "codes", facts.families),
        *figure("families"),
        *sections.report_splits(facts, outcome, counts, options),
        *records.report_off_scale(corpus, outcome),
        *records.report_best(facts, corpus),
        *sections.report_graphs(facts, outcome, counts),
        *(line for key in graphs for line in figure(key)),
        *arch_uid_section(facts, corpus, outcome),
        *records.report_runs(outcome, counts),
        *records.report_origins(facts, outcome),
        *records.report_largest_groups(facts),
        *records.report_invalid(facts),
        "## Single records",
        "",
        "`decisions.parquet` has one row for every input row: its outcome, the kept record that represents it,"
        " how similar the two are, and why. `lemur explain DIR NAME_OR_ID` shows one of them with its code.",
    ]
    (folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
