"""The report of a curation: `report.md`, all counted from the decisions. Figures are on the page."""

from pathlib import Path

from curate.folder.report import records, sections
from curate.folder.report.records import arch_uid_section
from curate.folder.report.sections import gather_facts
from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions
from curate.published.outcome import CurationOutcome
from lemur_core.files import Json


def write_report(
    folder: Path, corpus: LoadedRecords, outcome: CurationOutcome, counts: Json, options: CurateOptions, name: str
) -> None:
    """Write `report.md` into `folder`; the same outcome gives the same bytes.

    Args: counts: from `curate.published.outcome.count_decisions`. name: the name of the source.
    """
    facts = gather_facts(corpus, outcome)
    lines = [
        *sections.report_head(name, facts, options, outcome),
        *sections.report_funnel(facts),
        *sections.report_by_text(facts),
        *sections.report_by_group("By prefix", "prefix", "networks", facts.prefixes),
        *sections.report_by_group("By family", "family", "codes", facts.families),
        *sections.report_splits(facts, outcome, counts),
        *records.report_off_scale(corpus, outcome),
        *records.report_best(facts, corpus),
        *sections.report_graphs(facts, outcome, counts),
        *arch_uid_section(facts, corpus, outcome),
        *records.report_runs(outcome, counts),
        *records.report_origins(facts, outcome),
        *records.report_largest_groups(facts),
        *records.report_invalid(facts),
        "## Single records",
        "",
        "`decisions.parquet` has one row for every input row: its outcome, the kept record that represents it,"
        " how similar the two are, and why. `lemur show NAME --in DIR` shows one of them with its code.",
    ]
    (folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
