"""The sections of a curation report, each a list of Markdown lines; empty if there is nothing to report."""

from collections import Counter
from collections.abc import Mapping, Sequence

from curate.folder.report.facts import HOW, OUTCOMES, ReportFacts, select_compared_groups
from curate.folder.snapshot import BY_TEXT
from curate.model.corpus import LoadedRecords
from curate.model.options import LEAK_THRESHOLD, CurateOptions, get_prefix, matching_prefix
from curate.model.records import BY_VALUE
from curate.model.scores import find_best_rows, find_off_scale
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


def fold_rows(rows: Sequence[Sequence[str]], limit: int) -> list[Sequence[str]]:
    """Fold the rows of a table beyond a limit into one that counts them."""
    rest = [[f"{count(len(rows) - limit)} others", *[""] * (len(rows[0]) - 1)]] if len(rows) > limit else []
    return [*rows[:limit], *rest]


def report_head(name: str, facts: ReportFacts, options: CurateOptions, outcome: CurationOutcome) -> list[str]:
    """Return the title, the result in one line, the settings, and what could not be done."""
    compared, notes = outcome.graphs is not None, outcome.notes
    kept, codes = facts.codes["kept"], facts.codes.total()
    result = f"**{count(kept)} of {plural(codes, 'distinct code')} kept ({percent(kept, codes)}).**"
    result += (
        f" The source has {plural(facts.rows.total(), 'row')}: evaluations of"
        f" {plural(facts.networks.total(), 'network')} (a name with a code)."
    )
    if options.profile == "strict":
        result += (
            " No two kept records are near-duplicates, every removed one names a kept record that it is near,"
            " and nothing close crosses the splits."
            + (" No two of them compute the same, as far as they run." if compared else f" **{NOT_COMPARED}**")
        )
    settings = [
        f"profile `{options.profile}`",
        f"lexical Jaccard ≥ {options.lexical_threshold:g}",
        f"structural Jaccard ≥ {options.structural:g}",
        f"tokens `{options.tokens}`",
        f"graphs `{options.graphs if compared else 'off'}`",
        f"seed {options.seed}",
    ]
    chosen = {label: getattr(options, label) for label in (*BY_VALUE, "include", "nn_prefixes", "prefer")}
    settings += [f"{label} {', '.join(map(code_span, texts))}" for label, texts in chosen.items() if texts]
    if options.min_prefix:
        settings.append(f"at least {options.min_prefix} a prefix")
    if options.topup_prefix or options.topup_family:
        groups = ", ".join(code_span(text) for text in (*options.topup_prefix, *options.topup_family))
        settings.append(f"at least {options.topup_per_prefix} of {groups}")
    if options.from_scratch:
        settings.append("only networks trained from scratch")
    if options.require_runs:
        settings.append("only networks that run")
    if kept:
        by_prefix = sorted(facts.prefixes.items(), key=lambda item: (-item[1]["kept"], item[0]))
        most = [(prefix, counts["kept"]) for prefix, counts in by_prefix if counts["kept"]]
        shares = [f"{code_span(prefix, 40)} {count(number)} ({percent(number, kept)})" for prefix, number in most[:4]]
        if len(most) > 4:
            rest = sum(number for _, number in most[4:])
            shares.append(f"{count(len(most) - 4)} others {count(rest)} ({percent(rest, kept)})")
        result += f" Kept by prefix: {', '.join(shares)}."
    lines = [f"# Curation report: {plain(name)}", "", result, "", f"Settings: {', '.join(settings)}.", ""]
    if notes:
        lines += ["Not everything could be done as asked:", "", *(f"- {plain(note)}" for note in notes), ""]
    return lines


def report_delta(facts: ReportFacts, outcome: CurationOutcome) -> list[str]:
    """Report what a delta was compared with, and the resulting decisions; empty for a whole snapshot."""
    stated = outcome.details.get("against")
    if stated is None:
        return []
    by_stage = Counter(
        verdict.stage for verdict in facts.verdicts.values() if verdict.canonical in outcome.published and verdict.stage
    )
    removed = {stage: number for stage in DUPLICATE_STAGES if (number := by_stage[stage])}
    removed["exact"] = removed.get("exact", 0) - stated["codes_published"]
    stages = ", ".join(f"{count(number)} {stage}" for stage, number in removed.items() if number) or "none"
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
    lines = ["## From rows to records", ""]
    rows = [
        [
            "in",
            *(count(column.total()) for column in (facts.rows, facts.networks, facts.codes)),
            percent(facts.codes.total(), facts.codes.total()),
        ]
    ]
    for step, label in _STEPS.items():
        if step in ("invalid", "filter", "graph", "leak") and not facts.rows[step]:
            continue
        cells = [label, f"{count(facts.rows[step])} ({percent(facts.rows[step], facts.rows.total())})"]
        if step in OUTCOMES:
            codes = facts.codes[step]
            cells += [count(facts.networks[step]), count(codes), percent(codes, facts.codes.total())]
        else:
            cells += ["", "", ""]
        rows.append(
            [cell if step != "kept" or not cell or index == 0 else f"**{cell}**" for index, cell in enumerate(cells)]
        )
    lines += table(["", "rows", "networks", "codes", "% of codes"], rows)
    lines += [
        "Rows are evaluations. A network is a name with a code: its further rows (other data sets, epochs,"
        " hyperparameters) are not duplicates, and one row represents it. Each column adds up to its first line."
    ]
    shared = facts.networks.total() - facts.codes.total()
    if shared:
        lines[-1] += f" {plural(shared, 'network has', 'networks have')} exactly the code of another."
    usable = facts.rows.total() - facts.rows["invalid"]
    if usable != facts.rows.total():
        lines[-1] += " Networks and codes are those of the rows that can be used."
    if facts.stages["exact"] != facts.rows["exact"]:
        lines[-1] += (
            f" (The decisions of profile `{options.profile}` state `exact` for {plural(facts.stages['exact'], 'row')}:"
            f" {count(facts.stages['exact'] - facts.rows['exact'])} of them are such further rows.)"
        )
    return [*lines, ""]


def report_stages(facts: ReportFacts) -> list[str]:
    """Return how removed records resemble the kept ones."""
    removed = sum(facts.codes[stage] for stage in DUPLICATE_STAGES)
    if not removed:
        return []
    how = Counter((facts.verdicts[code].outcome, phrase) for code, phrase in facts.how.items())
    rows = [
        [stage, phrase, count(how[stage, phrase]), percent(how[stage, phrase], removed)]
        for stage in DUPLICATE_STAGES
        for phrase in HOW[stage]
        if how[stage, phrase]
    ]
    head = ["stage", "shared with the kept record", "codes", "% of removed"]
    by_text = [BY_TEXT, ""] if facts.codes["lexical"] or facts.codes["structural"] else []
    return ["## What removed records share with kept ones", "", *table(head, rows, left=2), *by_text]


def report_lsh(details: Json, options: CurateOptions) -> list[str]:
    """Report how candidate pairs were proposed, and how many true pairs were missed."""
    facts = details.get("lsh")
    if not facts:
        return []
    text = (
        f"MinHash-LSH with {plural(facts['bands'], 'band')} of {plural(facts['rows'], 'row')} proposes lexical pairs"
        f" and the exact Jaccard decides. A pair at {options.lexical_threshold:g} goes unproposed with a chance of"
        f" {facts['miss_chance']:.1e}. Measured against an exact join on this corpus: {count(facts['found'])} of"
        f" {plural(facts['pairs'], 'true pair')} of shingle sets proposed (recall {facts['recall']:.4g})"
    )
    if facts["sets_asked"] == facts["sets"]:
        text += f", all {plural(facts['sets'], 'set')} joined."
    else:
        text += f"; {count(facts['sets_asked'])} of {plural(facts['sets'], 'set')} joined with all others."
    return ["## Recall of the candidate pairs", "", text, ""]


def report_graphs(facts: ReportFacts, outcome: CurationOutcome, counts: Json) -> list[str]:
    """Report how many networks were traced, and how their graphs agree with the decisions by text."""
    if outcome.graphs is None:
        return []
    stated, kept = counts["graphs"], len(outcome.kept)
    lines = [
        "## What the networks compute",
        "",
        f"{plural(len(outcome.graphs), 'code was', 'codes were')} run in the sandbox,"
        f" {count(stated['traced'])} have a graph. Of {plural(kept, 'kept record')} {count(stated['kept'])} have one:"
        f" {count(stated['distinct'])} computations, {count(stated['distinct_up_to_widths'])} up to widths."
        " A code without a graph is decided by its text alone.",
        "",
        f"The numbers of {plural(stated['measured'], 'code')} were compared, too: those whose parameters have the"
        " same sizes as another's. Where numbers and graphs disagree, the numbers decide.",
        "",
    ]
    if stated["faults"]:
        graphs = ", ".join(f"`{graph[:_SHOWN]}`" for graph in stated["faults"])
        lines += [f"Faulty graphs, equal for several computations, none of which was removed for it: {graphs}.", ""]
    if stated["not_traced"]:
        rows = [[f"`{name}`", count(number)] for name, number in stated["not_traced"].items()]
        lines += table(["no graph", "codes"], rows)
    if stated["missing_packages"]:
        lines += ["Codes that import packages outside the declared runtime, and the option that allows each:", ""]
        rows = [
            [f"`{name}`", count(number), f"`{option_for(name) or '--runtime NAME'}`"]
            for name, number in stated["missing_packages"].items()
        ]
        lines += [*table(["package", "codes", "option"], rows), ""]
    agreements = Counter(
        (verdict.stage, outcome.graphs[code].agrees(outcome.graphs[verdict.canonical]))
        for code, verdict in facts.verdicts.items()
        if verdict.stage in DUPLICATE_STAGES and code in outcome.graphs and verdict.canonical in outcome.graphs
    )
    rows = [
        [stage, *(count(agreements[stage, agreement]) for agreement in _AGREEMENTS)]
        for stage in DUPLICATE_STAGES
        if any(agreements[stage, agreement] for agreement in _AGREEMENTS)
    ]
    if rows:
        lines += ["Removals by the agreement of the graphs, where both codes were traced:", ""]
        lines += table(["stage", "same", "same up to widths", "different", "no graph"], rows)
    return lines


_SHOWN = 16  # digits of a graph's digest
_AGREEMENTS: tuple[Agreement | None, ...] = ("same", "widths", "different", None)


def report_by_group(title: str, label: str, unit: str, groups: dict[str, Counter[str]]) -> list[str]:
    """Return a table of groups before and after, with their removals by stage and their drop rates."""
    kept_in_all = sum(counts["kept"] for counts in groups.values())
    columns = [
        outcome for outcome in OUTCOMES if outcome != "kept" and any(counts[outcome] for counts in groups.values())
    ]
    compared = select_compared_groups(groups)
    tail = list(compared)[LONG_TABLE:] if len(compared) > LONG_TABLE + 1 else []
    rows = [
        [code_span(name, 40), *_group_cells(counts, columns, kept_in_all)]
        for name, counts in compared.items()
        if name not in tail
    ]
    for names, what in ((tail, "others"), (list(groups.keys() - compared.keys()), "left out by an option")):
        if names:
            rest = sum((groups[name] for name in names), Counter[str]())
            rows.append([f"{count(len(names))} {what}", *_group_cells(rest, columns, kept_in_all)])
    heads = [label, f"{unit} in", *columns, "kept", "% dropped", "% of kept"]
    return [f"## {title}", "", *table(heads, rows)] if rows else []


def _group_cells(counts: Counter[str], columns: list[str], kept_in_all: int) -> list[str]:
    dropped, kept = sum(counts[stage] for stage in DUPLICATE_STAGES), counts["kept"]
    shares = [percent(dropped, dropped + kept), percent(kept, kept_in_all)]
    return [count(counts.total()), *(count(counts[column]) for column in columns), count(kept), *shares]


def report_splits(facts: ReportFacts, outcome: CurationOutcome, counts: Json, options: CurateOptions) -> list[str]:
    """Return the records and split groups of each split, and its shares of the prefixes and families."""
    if not outcome.kept:
        return []
    sizes: dict[str, Counter[str]] = {split: Counter() for split in counts["splits"]}
    for code, split in outcome.splits.items():
        sizes.setdefault(split, Counter())[outcome.clusters.get(code, "")] += 1
    grouped = bool(outcome.clusters)
    rows = []
    for split, groups in sizes.items():
        records = groups.total()
        cells = [split, count(records), percent(records, len(outcome.kept))]
        rows.append(cells + ([count(len(groups)), count(max(groups.values(), default=0))] if grouped else []))
    lines = [
        "## Splits",
        "",
        *table(["split", "records", "%", *(["groups", "largest group"] if grouped else [])], rows),
    ]
    if grouped and options.profile == "strict":
        lines += [
            f"Records linked by a lexical Jaccard of {LEAK_THRESHOLD:.2f} or more, or by an equal fingerprint, form"
            " a group, which is in one split as a whole. Test and validation get their share of each prefix and family"
            " if its groups allow that: a group that is larger than half of such a split is in train.",
            "",
        ]
    prefixes = {code: get_prefix(facts.names[code]) for code in outcome.kept}
    return lines + _share_table("prefix", prefixes, outcome) + _share_table("family", outcome.families, outcome)


def report_results(corpus: LoadedRecords, outcome: CurationOutcome) -> list[str]:
    """Report which results the columns show, and the values outside the scale of their benchmark."""
    shown = {code: row for code, row in outcome.representatives.items() if outcome.scores.get(code) is not None}
    if not shown:
        return []
    accuracies, epochs = corpus.rows.column("accuracy"), corpus.rows.column("epoch")
    best = find_best_rows(corpus, shown)
    first = sum(epochs[row].as_py() == 1 for row in shown.values())
    pairs = ((accuracies[row].as_py(), accuracies[shown[code]].as_py()) for code, row in best.items())
    better = sum(own is None or highest > own for highest, own in pairs)
    lines = [
        "## Results shown",
        "",
        "`accuracy` is not a record's best: it is that of the row whose percentile on its benchmark (task, dataset,"
        f" metric, epoch) is best, after one epoch for {count(first)} of {plural(len(shown), 'record')} with results."
        f" `best_accuracy` is the highest of all rows of the network on that data set, after `best_epoch`; for"
        f" {count(better)} it is higher. `score` ranks records: the mean percentile of all results, by data set and"
        " number of competitors, shrunk towards 0.5 if there are few. The table `stats` has all results.",
        "",
    ]
    off = find_off_scale(corpus)
    if off:
        columns = ("nn", "accuracy", "task", "dataset", "metric", "epoch")
        rows = [[_cell(corpus.rows.column(name)[row].as_py()) for name in columns] for row in off]
        lines += [
            f"{plural(len(off), 'accuracy lies', 'accuracies lie')} outside 0 to 1 where the others of the data set are"
            " fractions. They are compared unchanged, so one in percent ranks first on its benchmark:",
            "",
            *table(columns, fold_rows(rows, LONG_TABLE), 1),
        ]
    return lines


def _cell(value: object) -> str:
    return "–" if value is None else code_span(f"{value:g}" if isinstance(value, float) else str(value), 40)


def _share_table(label: str, values: Mapping[int, str], outcome: CurationOutcome) -> list[str]:
    """Return a table of the records of each prefix or family in each split, with their share of the split."""
    counted = Counter((values[code], outcome.splits[code]) for code in outcome.kept)
    sizes = Counter(outcome.splits.values())
    ranked = sorted(Counter(values[code] for code in outcome.kept).items(), key=lambda item: (-item[1], item[0]))
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


def report_weights(facts: ReportFacts, outcome: CurationOutcome, options: CurateOptions) -> list[str]:
    """Report the effect of `--upweight` on the records."""
    if not options.upweight:
        return []
    prefixes = [prefix for prefix, _ in options.upweight]
    indices = {code: matching_prefix(facts.names[code], prefixes) for code in outcome.kept}
    whole = sum(outcome.weights.get(code, 1.0) for code in outcome.kept)
    rows = []
    for index, label, factor in (
        *((index, code_span(prefix), factor) for index, (prefix, factor) in enumerate(options.upweight)),
        (None, "all others", 1.0),
    ):
        codes = [code for code in outcome.kept if indices[code] == index]
        share = sum(outcome.weights.get(code, 1.0) for code in codes)
        rows.append([label, f"{factor:g}", count(len(codes)), percent(len(codes), len(indices)), percent(share, whole)])
    return ["## Sampling weights", "", *table(["prefix", "weight", "records", "% of records", "% of weight"], rows)]
