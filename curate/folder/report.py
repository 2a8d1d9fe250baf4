"""The report of a curation, `report.md`: every number is counted from the decisions. Figures are on the page."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from curate.folder.snapshot import BY_TEXT
from curate.model.corpus import LoadedRecords
from curate.model.options import LEAK_THRESHOLD, CurateOptions, describe_purpose, get_prefix
from curate.model.records import BY_VALUE, find_off_scale
from curate.published.outcome import DUPLICATE_STAGES, CurationOutcome
from lemur_core.files import Json
from lemur_core.files.markdown import code_span, count, percent, plain, plural, table
from lemur_core.sandbox.runtime import option_for
from manifests.folders.report import LONGEST, count_shares, fold, listing, section
from manifests.folders.report import write_report as write
from manifests.records import SPLITS

#: The steps from the rows of the source to the records, in order.
_STEPS = {
    "invalid": "invalid: no code, or not Python",
    "filter": "left out by an option",
    "repeat": "further rows of a network",
    "exact": "exact duplicates",
    "lexical": "lexical near-duplicates",
    "structural": "structural near-duplicates",
    "graph": "other texts of the same computation",
    "leak": "near to two published splits",
    "kept": "**kept**",
}
_REMOVED = (*DUPLICATE_STAGES, "leak")
_USUAL = ("repeat", "exact", "lexical", "structural", "kept")
_NOT_COMPARED = "Graphs were not compared: two of them may compute the same."
_END = (
    "## Single networks\n\n`decisions.parquet` has one row for every input row: its outcome, the kept record that"
    " represents it, how similar the two are, and why. `lemur show NAME --in DIR` shows one of them with its code."
)


def write_report(
    folder: Path, corpus: LoadedRecords, outcome: CurationOutcome, counts: Json, options: CurateOptions, name: str
) -> None:
    """Write `report.md` into `folder`. Args: counts: of the manifest. name: that of the source."""
    names = corpus.rows.column("nn")
    stages = {code: outcome.decisions[row].outcome for code, row in outcome.rows.items()}
    prefixes = {code: get_prefix(names[row].as_py() or "") for code, row in outcome.rows.items()}
    families = {code: outcome.families.get(code, corpus.features.family[code]) for code in stages}
    sections = [
        _funnel(stages, outcome, counts),
        _groups("By prefix", "prefix", prefixes, stages, outcome.splits),
        _groups("By family", "family", families, stages, outcome.splits),
        _splits(outcome),
        _off_scale(corpus, outcome),
        _graphs(outcome, counts),
        _runs(counts),
        _origins(outcome),
        _invalid(corpus, outcome),
    ]
    write(folder, f"Curation report: {name}", _result(outcome, counts, options), outcome.notes, sections, _END)


def _result(outcome: CurationOutcome, counts: Json, options: CurateOptions) -> str:
    kept, codes = counts["rows"]["kept"], counts["codes"]
    compared = outcome.graphs is not None
    text = (
        f"**{count(kept)} of {plural(codes, 'distinct code')} kept ({percent(kept, codes)}).** The source has"
        f" {plural(counts['rows']['input'], 'row')}: evaluations of {plural(counts['networks'], 'network')} (a name"
        " with a code). No two kept records are near-duplicates, every removed one names a kept record that it is near,"
        " and nothing close crosses the splits."
    )
    text += " No two of them compute the same, as far as they run." if compared else f" **{_NOT_COMPARED}**"
    text = f"{describe_purpose(options.graphs)}\n\n{text}"
    return f"{text}\n\nSettings: {', '.join(_settings(options, compared=compared))}."


def _settings(options: CurateOptions, *, compared: bool) -> Iterator[str]:
    yield f"lexical Jaccard ≥ {options.lexical_threshold:g}, structural Jaccard ≥ {options.structural_threshold:g}"
    yield f"tokens `{options.tokens}`, graphs `{options.graphs if compared else 'off'}`, seed {options.seed}"
    for label in (*BY_VALUE, "include", "prefer"):
        if texts := getattr(options, label):
            yield f"{label} {', '.join(map(code_span, texts))}"
    if options.min_per_prefix:
        yield f"at least {options.min_per_prefix} a prefix"
    if options.topup_prefix:
        yield f"at least {options.topup_per_prefix} of {', '.join(map(code_span, options.topup_prefix))}"
    if options.from_scratch:
        yield "only networks trained from scratch"
    if options.require_runs:
        yield "only networks that run"


def _funnel(stages: Mapping[int, str], outcome: CurationOutcome, counts: Json) -> list[str]:
    """Return the table of rows and codes by outcome; each column adds up."""
    codes, rows = Counter(stages.values()), counts["rows"]
    whole = codes.total()
    lines = [["in", count(rows["input"]), count(whole), percent(whole, whole)]]
    for step, label in _STEPS.items():
        if rows.get(step) or step in _USUAL:
            cells = [count(rows[step]), count(codes[step]), percent(codes[step], whole)]
            if step in ("invalid", "repeat"):
                cells[1:] = ["", ""]
            lines.append([label, *(f"**{cell}**" if step == "kept" else cell for cell in cells)])
    note = (
        "Rows are evaluations. Further rows of a network (other data sets, epochs, hyperparameters) are not duplicates:"
        " one row represents it. Each column adds up to its first line."
    )
    parts = [BY_TEXT, _agreements(stages, outcome)] if codes["lexical"] or codes["structural"] else []
    return section("From rows to records", table(["", "rows", "codes", "% of codes"], lines), note, *parts)


def _agreements(stages: Mapping[int, str], outcome: CurationOutcome) -> str:
    """Return what the graphs say of the removals by text, where both codes were traced."""
    graphs, agree = outcome.graphs or {}, Counter[str | None]()
    for code, stage in stages.items():
        other = outcome.decisions[outcome.rows[code]].canonical
        if stage in ("lexical", "structural") and code in graphs and other in graphs:
            agree[graphs[code].agrees(graphs[other])] += 1
    if not (known := agree["same"] + agree["widths"] + agree["different"]):
        return ""
    return (
        f"Of {plural(known, 'removal')} by text here with a graph on both sides, {count(agree['same'])} compute the"
        f" same as the kept code, {count(agree['widths'])} the same up to widths, {count(agree['different'])} another"
        " architecture."
    )


def _groups(
    title: str, label: str, groups: Mapping[int, str], stages: Mapping[int, str], splits: Mapping[int, str]
) -> list[str]:
    """Return a table of groups of codes: what came in, what was removed at which stage, and the kept by split."""
    removed = [stage for stage in ("filter", *_REMOVED) if stage in stages.values()]
    counted: dict[str, Counter[str]] = {}
    for code, group in groups.items():
        counted.setdefault(group, Counter()).update(filter(None, (stages[code], splits.get(code))))

    def cells(name: str, numbers: Counter[str]) -> list[str]:
        kept, dropped = numbers["kept"], sum(numbers[stage] for stage in _REMOVED)
        own = [kept + dropped + numbers["filter"], *(numbers[stage] for stage in removed), kept]
        return [name, *map(count, own), percent(dropped, kept + dropped), *(count(numbers[split]) for split in SPLITS)]

    ranked = sorted(counted, key=lambda name: (-sum(counted[name][stage] for stage in _STEPS), name))
    listed = [name for name in ranked if counted[name].keys() - {"filter"}]
    listed = listed if len(listed) <= LONGEST + 1 else listed[:LONGEST]
    rows = [cells(code_span(name, 40), counted[name]) for name in listed]
    if rest := [name for name in ranked if name not in listed]:
        rows.append(cells(plural(len(rest), "other"), sum((counted[name] for name in rest), Counter[str]())))
    return section(title, listing([label, "codes in", *removed, "kept", "% dropped", *SPLITS], rows))


def _splits(outcome: CurationOutcome) -> list[str]:
    if not outcome.kept:
        return []
    rows = []
    for split in SPLITS:
        sizes = Counter(outcome.clusters[code] for code, own in outcome.splits.items() if own == split)
        number, largest = sizes.total(), max(sizes.values(), default=0)
        rows.append([split, count(number), percent(number, len(outcome.kept)), count(len(sizes)), count(largest)])
    note = (
        f"Records linked by a lexical Jaccard of {LEAK_THRESHOLD:.2f} or more, or by an equal fingerprint, form a"
        " group, which is in one split as a whole. Test and validation get their share of each prefix and family if its"
        " groups allow that: a group that is larger than half of such a split is in train."
    )
    return section("Splits", listing(["split", "records", "%", "groups", "largest group"], rows), note)


def _off_scale(corpus: LoadedRecords, outcome: CurationOutcome) -> list[str]:
    """List the accuracies that are outside the scale of their benchmark, if any record has a score."""
    off = find_off_scale(corpus) if any(outcome.scores.get(code) is not None for code in outcome.kept) else []
    columns = ("nn", "accuracy", *BY_VALUE, "epoch")
    rows = [[_cell(corpus.rows.column(name)[row].as_py()) for name in columns] for row in off]
    intro = (
        f"{plural(len(off), 'accuracy lies', 'accuracies lie')} outside 0 to 1 where the others of the data set are"
        " fractions. They are compared unchanged, so one in percent ranks first on its benchmark:"
    )
    return section("Accuracies off their scale", listing(columns, fold(rows), intro=intro))


def _cell(value: object) -> str:
    return "–" if value is None else code_span(f"{value:g}" if isinstance(value, float) else str(value), 40)


def _graphs(outcome: CurationOutcome, counts: Json) -> list[str]:
    """Report how many codes have a graph, and why the others have none."""
    if outcome.graphs is None:
        return []
    stated = counts["graphs"]
    text = (
        f"{plural(len(outcome.graphs), 'code was', 'codes were')} run in the sandbox, {count(stated['traced'])} have a"
        f" graph. Of {plural(len(outcome.kept), 'kept record')} {count(stated['kept'])} have one:"
        f" {plural(stated['distinct'], 'computation')}, {count(stated['distinct_up_to_widths'])} up to widths. A code"
        f" without a graph is decided by its text alone. The numbers of {plural(stated['measured'], 'code')} were"
        " compared, too: those whose parameters have the same sizes as another's. Where numbers and graphs disagree,"
        " the numbers decide."
    )
    if faults := stated["faults"]:
        named = ", ".join(f"`{graph[:16]}`" for graph in faults)
        text += f" Faulty graphs, equal for several computations, none of which was removed for it: {named}."
    packages = [
        [code_span(name), count(number), f"`{option_for(name) or '--runtime NAME'}`"]
        for name, number in stated["missing_packages"].items()
    ]
    intro = "Codes that import packages outside the declared runtime, and the option that allows each:"
    return section(
        "What the networks compute",
        text,
        listing(["no graph", "codes", "%"], count_shares(stated["not_traced"], len(outcome.graphs))),
        listing(["package", "codes", "option"], packages, intro=intro),
    )


def _runs(counts: Json) -> list[str]:
    """Report why networks were left out that do not run; empty if none was."""
    if "runs" not in counts or not (stated := counts["runs"]["left_out"]):
        return []
    text = "Left out, since they do not run or could not be tried (`--require-runs`):"
    left_out = count_shares(stated, sum(stated.values()))
    return section("Networks that do not run", text, listing(["category", "codes", "%"], left_out))


def _origins(outcome: CurationOutcome) -> list[str]:
    """Report the codes that come from repositories, by license."""
    origins = outcome.rights.origins
    if origins is None:
        return []
    stated, kept = outcome.details["origins"], set(outcome.kept)
    all_of = Counter(origin.license for origin in origins.values())
    of_kept = Counter(origin.license for code, origin in origins.items() if code in kept)
    blocked = sum(outcome.rights.is_blocked(code) for code in origins if code in kept)
    text = (
        f"Compared with {plural(stated['blocks'], 'block')} of {', '.join(map(code_span, stated['folders']))}, class by"
        f" class: {plural(of_kept.total(), 'kept record')} of {count(len(kept))} and"
        f" {plural(all_of.total() - of_kept.total(), 'removed code')} have a class of one of them (Jaccard ≥"
        f" {stated['threshold']:g}, classes of {stated['least_shingles']} shingles or more). For {count(blocked)} of"
        " the records the license forbids redistribution of the code: publishing leaves it out. The columns `origin`"
        " and `origin_similarity` name the block of each."
    )
    rows = [[code_span(name, 60), count(of_kept[name]), count(number)] for name, number in sorted(all_of.items())]
    return section("Where codes are from", text, listing(["license", "kept records", "codes"], fold(rows)))


def _invalid(corpus: LoadedRecords, outcome: CurationOutcome) -> list[str]:
    """List why rows are unusable, with the first of each kind."""
    names = corpus.rows.column("nn")
    kinds: dict[str, list[tuple[int, str]]] = {}
    for row, decision in enumerate(outcome.decisions):
        if decision.stage == "invalid":
            kinds.setdefault(re.sub(r"\d[\d,]*", "N", decision.reason), []).append((row, decision.reason))
    rows = []
    for kind, cases in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
        first = ", ".join(f"{row}: {code_span(names[row].as_py() or '', 40)}" for row, _ in cases[:3])
        reason = plain(cases[0][1] if len({reason for _, reason in cases}) == 1 else kind)
        rows.append([reason, first + (", …" if len(cases) > 3 else ""), count(len(cases))])
    return section("Invalid rows", listing(["reason", "row: name", "rows"], fold(rows), left=2))
