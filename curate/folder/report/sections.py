"""The sections of a curation report that count: each a list of Markdown lines, empty if there is nothing to report."""

from collections import Counter
from collections.abc import Mapping, Sequence

from curate.folder.report.facts import OUTCOMES, ReportFacts, rank
from curate.folder.snapshot import BY_TEXT
from curate.model.options import LEAK_THRESHOLD, CurateOptions, get_prefix
from curate.model.records import BY_VALUE
from curate.model.splits import RARE
from curate.published.outcome import DUPLICATE_STAGES, CurationOutcome
from lemur_core.files import Json
from lemur_core.files.markdown import code_span, count, percent, plain, plural, table
from lemur_core.sandbox.runtime import option_for
from manifests.records import SPLITS, Agreement

#: Maximum number of rows of a table; the rest is folded into one.
LONG_TABLE = 20

#: The note shown if there are no graphs.
NOT_COMPARED = "Graphs were not compared: two of them may compute the same."

_STEPS = {
    "invalid": "invalid: no code, or not Python",
    "filter": "left out by an option",
    "further": "further rows of a network",
    "exact": "exact duplicates",
    "lexical": "lexical near-duplicates",
    "structural": "structural near-duplicates",
    "graph": "other texts of the same computation",
    "leak": "near to two published splits",
    "kept": "**kept**",
}
#: Steps of the funnel that most curations do not have.
_RARE_STEPS = ("invalid", "filter", "graph", "leak")

_SHOWN = 16  # digits of a graph's digest
_AGREEMENTS: tuple[Agreement | None, ...] = ("same", "widths", "different", None)


def fold_rows(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Fold the rows of a long table into one that counts them."""
    more = len(rows) - LONG_TABLE
    return [*rows[:LONG_TABLE], *([[f"{count(more)} others", *[""] * (len(rows[0]) - 1)]] if more > 0 else [])]


def report_head(name: str, facts: ReportFacts, options: CurateOptions, outcome: CurationOutcome) -> list[str]:
    """Return the title, the result in one line, the settings, and what could not be done."""
    compared, notes = outcome.graphs is not None, outcome.notes
    kept, codes = facts.codes["kept"], facts.codes.total()
    result = (
        f"**{count(kept)} of {plural(codes, 'distinct code')} kept ({percent(kept, codes)}).**"
        f" The source has {plural(facts.rows.total(), 'row')}: evaluations of"
        f" {plural(facts.networks.total(), 'network')} (a name with a code)."
    )
    if options.profile == "strict":
        result += (
            " No two kept records are near-duplicates, every removed one names a kept record that it is near,"
            " and nothing close crosses the splits."
            + (" No two of them compute the same, as far as they run." if compared else f" **{NOT_COMPARED}**")
        )
    if most := rank({prefix: counts["kept"] for prefix, counts in facts.prefixes.items() if counts["kept"]}):
        rest = [(f"{count(len(most) - 4)} others", sum(number for _, number in most[4:]))] if len(most) > 4 else []
        shares = [*((code_span(prefix, 40), number) for prefix, number in most[:4]), *rest]
        by_prefix = ", ".join(f"{label} {count(number)} ({percent(number, kept)})" for label, number in shares)
        result += f" Kept by prefix: {by_prefix}."
    lines = [f"# Curation report: {plain(name)}", "", result, ""]
    lines += [f"Settings: {', '.join(_list_settings(options, compared=compared))}.", ""]
    if notes:
        lines += ["Not everything could be done as asked:", "", *(f"- {plain(note)}" for note in notes), ""]
    return lines


def _list_settings(options: CurateOptions, *, compared: bool) -> list[str]:
    chosen = {label: getattr(options, label) for label in (*BY_VALUE, "include", "nn_prefixes", "prefer")}
    topups = ", ".join(map(code_span, (*options.topup_prefix, *options.topup_family)))
    settings = {
        f"profile `{options.profile}`": True,
        f"lexical Jaccard ≥ {options.lexical_threshold:g}": True,
        f"structural Jaccard ≥ {options.structural:g}": True,
        f"tokens `{options.tokens}`": True,
        f"graphs `{options.graphs if compared else 'off'}`": True,
        f"seed {options.seed}": True,
        **{f"{label} {', '.join(map(code_span, texts))}": bool(texts) for label, texts in chosen.items()},
        f"at least {options.min_prefix} a prefix": bool(options.min_prefix),
        f"at least {options.topup_per_prefix} of {topups}": bool(topups),
        "only networks trained from scratch": options.from_scratch,
        "only networks that run": options.require_runs,
    }
    return [text for text, applies in settings.items() if applies]


def report_delta(facts: ReportFacts, outcome: CurationOutcome) -> list[str]:
    """Report what a delta was compared with, and the resulting decisions; empty for a whole snapshot."""
    stated = outcome.details.get("against")
    if stated is None:
        return []
    by_stage = Counter(verdict.stage for verdict in facts.verdicts.values() if verdict.canonical in outcome.published)
    by_stage["exact"] -= stated["codes_published"]
    stages = ", ".join(f"{count(by_stage[stage])} {stage}" for stage in DUPLICATE_STAGES if by_stage[stage]) or "none"
    folders = ", ".join(map(code_span, stated["folders"]))
    return [
        "## Compared with the published records",
        "",
        f"This is a delta to {folders}: {plural(stated['records'], 'record')}, whose decisions are final."
        f" Of the codes here {count(stated['codes_published'])} are published there; their rows"
        f" are in `stats`. {count(stated['codes_removed_there'])} were removed there, and share that decision. Removed"
        f" for a published record: {stages}. {plural(stated['split_groups'], 'group')} of new records went to the split"
        f" of published ones that are near; {count(facts.codes['leak'])} would have connected two splits.",
        "",
    ]


def report_funnel(facts: ReportFacts, options: CurateOptions) -> list[str]:
    """Return the table of rows, networks and codes by outcome; each column adds up."""
    all_rows, all_codes = facts.rows.total(), facts.codes.total()
    rows = [["in", count(all_rows), count(facts.networks.total()), count(all_codes), percent(all_codes, all_codes)]]
    for step, label in _STEPS.items():
        if facts.rows[step] or step not in _RARE_STEPS:
            cells = [f"{count(facts.rows[step])} ({percent(facts.rows[step], all_rows)})", "", "", ""]
            if step in OUTCOMES:
                codes = facts.codes[step]
                cells[1:] = [count(facts.networks[step]), count(codes), percent(codes, all_codes)]
            rows.append([label, *(f"**{cell}**" if step == "kept" else cell for cell in cells)])
    notes = (
        "Rows are evaluations. A network is a name with a code: its further rows (other data sets, epochs,"
        " hyperparameters) are not duplicates, and one row represents it. Each column adds up to its first line."
    )
    shared = facts.networks.total() - all_codes
    if shared:
        notes += f" {plural(shared, 'network has', 'networks have')} exactly the code of another."
    if facts.rows["invalid"]:
        notes += " Networks and codes are those of the rows that can be used."
    if facts.stages["exact"] != facts.rows["exact"]:
        notes += (
            f" (The decisions of profile `{options.profile}` state `exact` for {plural(facts.stages['exact'], 'row')}:"
            f" {count(facts.stages['exact'] - facts.rows['exact'])} of them are such further rows.)"
        )
    return ["## From rows to records", "", *table(["", "rows", "networks", "codes", "% of codes"], rows), notes, ""]


def report_by_text(facts: ReportFacts) -> list[str]:
    """Return what removals by text are, if there are any."""
    return [BY_TEXT, ""] if facts.codes["lexical"] or facts.codes["structural"] else []


def report_graphs(facts: ReportFacts, outcome: CurationOutcome, counts: Json) -> list[str]:
    """Report how many networks were traced, and how their graphs agree with the decisions by text."""
    graphs = outcome.graphs
    if graphs is None:
        return []
    stated = counts["graphs"]
    lines = [
        "## What the networks compute",
        "",
        f"{plural(len(graphs), 'code was', 'codes were')} run in the sandbox,"
        f" {count(stated['traced'])} have a graph. Of {plural(len(outcome.kept), 'kept record')}"
        f" {count(stated['kept'])} have one:"
        f" {count(stated['distinct'])} computations, {count(stated['distinct_up_to_widths'])} up to widths."
        " A code without a graph is decided by its text alone.",
        "",
        f"The numbers of {plural(stated['measured'], 'code')} were compared, too: those whose parameters have the"
        " same sizes as another's. Where numbers and graphs disagree, the numbers decide.",
        "",
    ]
    if stated["faults"]:
        faults = ", ".join(f"`{graph[:_SHOWN]}`" for graph in stated["faults"])
        lines += [f"Faulty graphs, equal for several computations, none of which was removed for it: {faults}.", ""]
    if stated["not_traced"]:
        lines += table(["no graph", "codes"], [[f"`{name}`", count(n)] for name, n in stated["not_traced"].items()])
    if stated["missing_packages"]:
        lines += ["Codes that import packages outside the declared runtime, and the option that allows each:", ""]
        rows = [
            [f"`{name}`", count(number), f"`{option_for(name) or '--runtime NAME'}`"]
            for name, number in stated["missing_packages"].items()
        ]
        lines += [*table(["package", "codes", "option"], rows), ""]
    agreements = Counter(
        (verdict.stage, graphs[code].agrees(graphs[verdict.canonical]))
        for code, verdict in facts.verdicts.items()
        if verdict.stage in DUPLICATE_STAGES and code in graphs and verdict.canonical in graphs
    )
    numbers = {stage: [agreements[stage, agreement] for agreement in _AGREEMENTS] for stage in DUPLICATE_STAGES}
    rows = [[stage, *map(count, line)] for stage, line in numbers.items() if any(line)]
    if rows:
        lines += ["Removals by the agreement of the graphs, where both codes were traced:", ""]
        lines += table(["stage", "same", "same up to widths", "different", "no graph"], rows)
    return lines


def report_by_group(title: str, label: str, unit: str, groups: dict[str, Counter[str]]) -> list[str]:
    """Return a table of groups before and after, with their removals by stage and their drop rates."""
    kept_in_all = sum(counts["kept"] for counts in groups.values())
    columns = [stage for stage in OUTCOMES if stage != "kept" and any(counts[stage] for counts in groups.values())]

    def list_cells(counts: Counter[str]) -> list[str]:
        dropped, kept = sum(counts[stage] for stage in DUPLICATE_STAGES), counts["kept"]
        shares = [percent(dropped, dropped + kept), percent(kept, kept_in_all)]
        return [count(counts.total()), *(count(counts[column]) for column in columns), count(kept), *shares]

    compared = {name: counts for name, counts in groups.items() if counts.total() > counts["filter"]}
    tail = list(compared)[LONG_TABLE:] if len(compared) > LONG_TABLE + 1 else []
    rows = [[code_span(name, 40), *list_cells(counts)] for name, counts in compared.items() if name not in tail]
    for names, what in ((tail, "others"), (list(groups.keys() - compared.keys()), "left out by an option")):
        if names:
            rest = sum((groups[name] for name in names), Counter[str]())
            rows.append([f"{count(len(names))} {what}", *list_cells(rest)])
    heads = [label, f"{unit} in", *columns, "kept", "% dropped", "% of kept"]
    return [f"## {title}", "", *table(heads, rows)] if rows else []


def report_splits(facts: ReportFacts, outcome: CurationOutcome, counts: Json, options: CurateOptions) -> list[str]:
    """Return the records and split groups of each split, and its shares of the prefixes and families."""
    if not outcome.kept:
        return []
    grouped = bool(outcome.clusters)
    groups_of: dict[str, Counter[str]] = {split: Counter() for split in counts["splits"]}
    for code, split in outcome.splits.items():
        groups_of[split][outcome.clusters.get(code, "")] += 1
    rows = []
    for split, groups in groups_of.items():
        cells = [split, count(groups.total()), percent(groups.total(), len(outcome.kept))]
        rows.append(cells + ([count(len(groups)), count(max(groups.values(), default=0))] if grouped else []))
    heads = ["split", "records", "%", *(["groups", "largest group"] if grouped else [])]
    lines = ["## Splits", "", *table(heads, rows)]
    if grouped and options.profile == "strict":
        lines += [
            f"Records linked by a lexical Jaccard of {LEAK_THRESHOLD:.2f} or more, or by an equal fingerprint, form"
            " a group, which is in one split as a whole. Test and validation get their share of each prefix and family"
            " if its groups allow that: a group that is larger than half of such a split is in train.",
            "",
        ]
    prefixes = {code: get_prefix(facts.names[code]) for code in outcome.kept}
    return lines + _share_table("prefix", prefixes, outcome) + _share_table("family", outcome.families, outcome)


def _share_table(label: str, values: Mapping[int, str], outcome: CurationOutcome) -> list[str]:
    """Return a table of the records of each prefix or family in each split, with their share of the split."""
    counted = Counter((values[code], outcome.splits[code]) for code in outcome.kept)
    sizes = Counter(outcome.splits.values())
    ranked = rank(Counter(values[code] for code in outcome.kept))
    large = [value for value, number in ranked[:LONG_TABLE] if number >= RARE]
    numbers = {code_span(value, 40): [counted[value, split] for split in SPLITS] for value in large}
    if len(ranked) > len(large):
        shown = [sum(counted[value, split] for value in large) for split in SPLITS]
        rest = [sizes[split] - number for split, number in zip(SPLITS, shown, strict=True)]
        numbers[f"{count(len(ranked) - len(large))} others"] = rest
    rows = [
        [name, *(f"{count(n)} ({percent(n, sizes[split])})" for n, split in zip(line, SPLITS, strict=True))]
        for name, line in numbers.items()
    ]
    return table([label, *SPLITS], rows)
