"""The report of a curation: `report.md` and its figures, all counted from the decisions."""

from pathlib import Path

from curate.folder.report import records, sections
from curate.folder.report.arch_uid import arch_uid_section
from curate.folder.report.facts import gather_facts
from curate.folder.report.figures import draw_funnel, draw_graphs
from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions
from curate.published.outcome import CurationOutcome
from lemur_core.files import Json

_FUNNEL = "Codes that remain after each stage; in a light color, those removed."


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
    captions = {"funnel.png": _FUNNEL} if draw_funnel(folder / "figures", facts) else {}
    graphs = draw_graphs(folder / "figures", corpus, facts, outcome)
    captions |= {f"{name}.svg": caption for name, caption in graphs.items()}

    def figure(file: str) -> list[str]:
        if file not in captions:
            return []
        caption = f"Figure {list(captions).index(file) + 1}. {captions[file]}"
        return [f"![{caption}](figures/{file})", "", f"*{caption}*", ""]

    lines = [
        *sections.report_head(name, facts, options, outcome),
        *sections.report_funnel(facts, options),
        *figure("funnel.png"),
        *sections.report_delta(facts, outcome),
        *sections.report_by_text(facts),
        *sections.report_by_group("By prefix", "prefix", "networks", facts.prefixes),
        *sections.report_by_group("By family", "family", "codes", facts.families),
        *sections.report_splits(facts, outcome, counts, options),
        *records.report_off_scale(corpus, outcome),
        *records.report_best(facts, corpus),
        *sections.report_graphs(facts, outcome, counts),
        *(line for name in graphs for line in figure(f"{name}.svg")),
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
