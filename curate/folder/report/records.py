"""The sections of a curation report that list single records: groups, rescued, trained weights, runs, invalid rows."""

import re
import statistics
from collections import Counter

from curate.compute.runs import RunResult
from curate.folder.report.facts import ReportFacts
from curate.folder.report.sections import LONG_TABLE, fold_rows
from curate.model.corpus import LoadedRecords
from curate.model.options import get_prefix
from curate.model.rights import Rights
from curate.published.outcome import CurationOutcome
from lemur_core.files import Json
from lemur_core.files.markdown import code_span, count, percent, plain, plural, ratio, table

#: Maximum number of rows of a table that should normally be complete.
WHOLE_TABLE = 500


def report_rescued(facts: ReportFacts) -> list[str]:
    """List the records kept for the support of a prefix or family."""
    codes = [code for code, verdict in facts.verdicts.items() if verdict.rescued is not None]
    if not codes:
        return []
    codes.sort(key=lambda code: (get_prefix(facts.names[code]), facts.names[code], facts.ids[code]))
    kinds = Counter(facts.verdicts[code].rescued for code in codes)
    labels = {"prefix": "for the minimum of a prefix", "topup": "as a top-up"}
    summary = ", ".join(
        f"{count(number)} {labels.get(kind or '', kind)}" for kind, number in sorted(kinds.items(), key=str)
    )
    rows = [
        [code_span(facts.names[code]), f"`{facts.ids[code][:12]}`", plain(facts.verdicts[code].reason)]
        for code in codes
    ]
    return [
        "## Rescued records",
        "",
        f"Kept though others rank before them: {summary}.",
        "",
        *table(["record", "id", "why"], fold_rows(rows, LONG_TABLE), 3),
    ]


def report_best(facts: ReportFacts, corpus: LoadedRecords) -> list[str]:
    """List the best codes on one benchmark, with their outcomes."""
    if not facts.best:
        return []
    rows = [
        [
            str(number),
            code_span(facts.names[code]),
            f"`{facts.ids[code][:12]}`",
            _describe_outcome(code, facts),
            "yes" if code in corpus.features.pretrained else "",
            "–" if epoch is None else count(epoch),
            f"{100 * accuracy:.2f} %",
        ]
        for number, (code, accuracy, epoch) in enumerate(facts.best, 1)
    ]
    return [
        "## Best on CIFAR-10",
        "",
        f"The {count(len(rows))} distinct codes with the highest accuracies, over all epochs and hyperparameters, as"
        " Figure 7 of NN-RAG's paper has them, before curation. What loads trained weights is marked: it was not"
        " trained on CIFAR-10 alone. Epochs and sizes of images differ, so this is not a comparison of architectures.",
        "",
        *table(["", "code", "id", "outcome", "trained weights", "epoch", "accuracy"], rows, 5),
    ]


def report_pretrained(facts: ReportFacts, corpus: LoadedRecords, rights: Rights) -> list[str]:
    """List every code that loads trained weights, with the lines that do, unless its license forbids showing them."""
    evidence_of = corpus.features.pretrained
    codes = [code for code in facts.verdicts if code in evidence_of]
    if not codes:
        return []
    codes.sort(key=lambda code: (facts.verdicts[code].outcome != "kept", facts.names[code], facts.ids[code]))
    kept = sum(facts.verdicts[code].outcome == "kept" for code in codes)
    lines = ["## Records with trained weights", ""]
    loading = plural(len(codes), "code loads", "codes load")
    lines += [
        f"{loading} trained weights, {count(kept)} of them kept. Their accuracies"
        " say little about an architecture; column `pretrained` marks them, and `--from-scratch` leaves them out.",
        "",
    ]
    rows = []
    for code in codes:
        lines_of = [
            (item.line, "" if rights.is_blocked(code) else f": {code_span(item.text, 110)}")
            for item in evidence_of[code]
        ]
        evidence = "<br>".join(f"{line}{text}" for line, text in lines_of)
        rows.append(
            [code_span(facts.names[code]), f"`{facts.ids[code][:12]}`", _describe_outcome(code, facts), evidence]
        )
    return lines + table(["name", "id", "outcome", "line: code"], fold_rows(rows, WHOLE_TABLE), 4)


def _describe_outcome(code: int, facts: ReportFacts) -> str:
    verdict = facts.verdicts[code]
    if verdict.kept or verdict.canonical is None:
        return "kept" if verdict.kept else "left out by an option"
    return f"{verdict.outcome}, {ratio(facts.similarity(code))} to {code_span(facts.names[verdict.canonical])}"


def report_invalid(facts: ReportFacts) -> list[str]:
    """List why rows are unusable, with the first of each kind."""
    if not facts.invalid:
        return []
    kinds: dict[str, list[tuple[int, str, str]]] = {}
    for row, name, reason in facts.invalid:
        kinds.setdefault(re.sub(r"\d[\d,]*", "N", reason), []).append((row, name, reason))
    ranked = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = []
    for kind, cases in ranked:
        first = ", ".join(f"{row}: {code_span(name, 40)}" for row, name, _ in cases[:3])
        same = len({reason for _, _, reason in cases}) == 1
        rows.append(
            [plain(cases[0][2] if same else kind), first + (", …" if len(cases) > 3 else ""), count(len(cases))]
        )
    return ["## Invalid rows", "", *table(["reason", "row: name", "rows"], fold_rows(rows, LONG_TABLE), 2)]


def report_origins(facts: ReportFacts, outcome: CurationOutcome) -> list[str]:
    """List the codes that come from repositories, by license and source, with examples; empty if not requested."""
    rights = outcome.rights
    if rights.origins is None:
        return []
    kept = set(outcome.kept)
    code_origins = {code: rights.origins[code] for code in sorted(rights.origins, key=lambda origin: facts.ids[origin])}
    stated = outcome.details["origins"]
    blocked = sum(rights.is_blocked(code) for code in code_origins if code in kept)
    lines = [
        "## Where codes are from",
        "",
        f"Compared with {plural(stated['blocks'], 'block')} of {', '.join(map(code_span, stated['folders']))}, class by"
        f" class: {plural(len(code_origins.keys() & kept), 'kept record')} of {count(len(kept))} and"
        f" {plural(len(code_origins.keys() - kept), 'removed code')} have a class of one of them (Jaccard ≥"
        f" {stated['threshold']:g}, classes of {stated['least_shingles']} shingles or more). For {count(blocked)} of"
        " the records the license forbids redistribution of the code: publishing leaves it out.",
        "",
    ]
    for title, named in (
        ("licence", {code: origin.license for code, origin in code_origins.items()}),
        ("source", {code: origin.source for code, origin in code_origins.items()}),
    ):
        of_kept = Counter(name for code, name in named.items() if code in kept)
        rows = [
            [code_span(name, 60), count(of_kept[name]), count(n)] for name, n in _sort_by_count(Counter(named.values()))
        ]
        lines += table([title, "kept records", "codes"], fold_rows(rows, LONG_TABLE)) if rows else []
    shown = sorted(code_origins.items(), key=lambda item: (item[0] not in kept, not rights.is_blocked(item[0])))[
        :LONG_TABLE
    ]
    rows = [
        [
            code_span(facts.names[code]),
            code_span(origin.name, 40),
            code_span(origin.block),
            code_span(origin.license, 40),
            ratio(origin.similarity),
        ]
        for code, origin in shown
    ]
    return lines + table(["record", "its class", "is from", "licence", "similarity"], rows, 4) if rows else lines


LARGEST_GROUPS = 10
_MEMBERS_SHOWN = 3


def report_largest_groups(facts: ReportFacts) -> list[str]:
    """List the kept records with most duplicates, with their least and most similar members."""
    groups = facts.groups()
    if not groups:
        return []
    biggest = len(groups[0][1])
    summary = f"{plural(len(groups), 'kept record stands', 'kept records stand')} for others"
    lines = ["## The largest groups", "", f"{summary}; the largest group has {plural(biggest + 1, 'record')}.", ""]
    rows = []
    for index, (canonical, members) in enumerate(groups[:LARGEST_GROUPS], start=1):
        similarities = [facts.similarity(code) for code in members]
        prefixes = Counter(get_prefix(facts.names[code]) for code in (canonical, *members))
        common = ", ".join(
            f"{code_span(prefix, 20)} {count(number)}" for prefix, number in _sort_by_count(prefixes)[:3]
        )
        rows.append(
            [
                f"{index}",
                code_span(facts.names[canonical]),
                common + (", …" if len(prefixes) > 3 else ""),
                count(len(members) + 1),
                ratio(similarities[0]),
                ratio(statistics.median(similarities)),
            ]
        )
    lines += table(["", "kept record", "prefixes", "records", "least similar", "median"], rows, 3)
    lines += ["Members of each, least and most similar to the kept record:", ""]
    for index, (_, members) in enumerate(groups[:LARGEST_GROUPS], start=1):
        if len(members) <= 2 * _MEMBERS_SHOWN:
            text = ", ".join(_member(code, facts) for code in members)
        else:
            least = ", ".join(_member(code, facts) for code in members[:_MEMBERS_SHOWN])
            text = f"{least} … {', '.join(_member(code, facts) for code in members[-_MEMBERS_SHOWN:])}"
        lines.append(f"{index}. {text}")
    return [*lines, ""]


def _member(code: int, facts: ReportFacts) -> str:
    verdict = facts.verdicts[code]
    return f"{code_span(facts.names[code])} {ratio(facts.similarity(code))} {verdict.outcome}"


def _sort_by_count(counted: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counted.items(), key=lambda item: (-item[1], item[0]))


_MEANING = {
    "missing_dependency": "it imports a module that is not installed here",
    "import_failed": "the file raises when it is executed",
    "no_net": "it defines no class Net that is a module",
    "construct_failed": "Net(in_shape, out_shape, prm, device) raises",
    "forward_failed": "forward raises",
    "wrong_output": "forward gives another shape than samples x classes",
    "not_finite": "forward gives infinite values or NaN",
    "denied": "it asks for something that the sandbox refuses",
    "timeout": "it takes too long",
    "out_of_memory": "it takes too much memory",
    "too_large": "its graph has too many operations",
    "over_limit": "it takes too much scratch space or too many threads",
    "crashed": "it ends the process",
    "error": "the trial itself failed",
    "unknown_input": "not tried: its input from LEMUR is unknown",
}


def report_runs(facts: ReportFacts, corpus: LoadedRecords, outcome: CurationOutcome, counts: Json) -> list[str]:
    """Report how many kept networks run, and why the others do not; empty if runs were not checked."""
    if outcome.runs is None:
        return []
    run_counts = counts["runs"]
    lines = [
        "## Networks that run",
        "",
        f"{plural(run_counts['runs'], 'kept network')} of {count(len(outcome.kept))} ran:"
        " constructed as `Net(in_shape, out_shape, prm, device)` and run forward on two samples of the size that the"
        " record's transform gives, on a CPU, in eval mode, without trained weights (column `runs`)."
        f" {count(run_counts['fails'])} do not run, {count(run_counts['not_tried'])} could not be tried.",
        "",
    ]
    if run_counts["errors"]:
        lines += _report_runs_by_task(corpus, outcome)
        lines += _categories(run_counts["errors"], "kept networks")
        lines += _failures(facts, outcome.runs)
    if run_counts["left_out"]:
        lines += ["Left out because they do not run or could not be tried (`--require-runs`):", ""]
        lines += _categories(run_counts["left_out"], "codes")
    return lines


def _report_runs_by_task(corpus: LoadedRecords, outcome: CurationOutcome) -> list[str]:
    assert outcome.runs is not None
    tasks = corpus.rows.column("task").take([outcome.representatives[code] for code in outcome.kept]).to_pylist()
    counted: dict[str, Counter[bool | None]] = {}
    for code, task in zip(outcome.kept, tasks, strict=True):
        counted.setdefault(task or "", Counter())[outcome.runs[code].runs] += 1
    ranked = sorted(counted.items(), key=lambda item: (-item[1].total(), item[0]))
    rows = [
        [code_span(task, 40), count(c.total()), count(c[True]), count(c[False]), count(c[None])] for task, c in ranked
    ]
    return table(["task", "kept", "run", "do not", "not tried"], fold_rows(rows, LONG_TABLE))


def _categories(errors: dict[str, int], unit: str) -> list[str]:
    ranked = sorted(errors.items(), key=lambda item: (-item[1], item[0]))
    whole = sum(errors.values())
    rows = [[f"`{name}`", _MEANING.get(name, ""), count(number), percent(number, whole)] for name, number in ranked]
    return table(["category", "meaning", unit, "%"], rows, 2)


def _failures(facts: ReportFacts, results: dict[int, RunResult]) -> list[str]:
    failed = [code for code, result in results.items() if result.error is not None]
    failed.sort(key=lambda code: (str(results[code].category), facts.names[code], facts.ids[code]))
    rows = [
        [code_span(facts.names[code]), f"`{facts.ids[code][:12]}`", plain(results[code].error or "")] for code in failed
    ]
    return table(["name", "id", "error"], fold_rows(rows, WHOLE_TABLE), 3)
