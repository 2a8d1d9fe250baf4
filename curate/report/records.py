"""The parts of a curation report that show single records: groups, pairs side by side, a table of all, what runs."""

import difflib
import re
import statistics
from collections import Counter
from typing import Any

from curate.corpus import CodeFile, Corpus
from curate.options import prefix_of
from curate.outcome import Outcome
from curate.report.facts import HOW, REMOVED, Facts
from curate.report.sections import LONG_TABLE
from curate.runs.check import RunResult
from lemur_core.files.markdown import block, code_span, count, percent, plain, plural, ratio, shown, table

#: Rows of a table that shall be whole, unless something is very odd.
WHOLE_TABLE = 500


def rescued(facts: Facts) -> list[str]:
    """Records that are kept for the support of a prefix or family."""
    codes = [code for code, verdict in facts.verdicts.items() if verdict.rescued is not None]
    if not codes:
        return []
    codes.sort(key=lambda code: (prefix_of(facts.names[code]), facts.names[code], facts.ids[code]))
    kinds = Counter(facts.verdicts[code].rescued for code in codes)
    labels = {"prefix": "for the minimum of a prefix", "topup": "as a top-up"}
    summary = ", ".join(
        f"{count(number)} {labels.get(kind or '', kind)}" for kind, number in sorted(kinds.items(), key=str)
    )
    rows = [
        [code_span(facts.names[code]), f"`{facts.ids[code][:12]}`", plain(facts.verdicts[code].reason)]
        for code in codes[:LONG_TABLE]
    ]
    if len(codes) > LONG_TABLE:
        rows.append([f"{count(len(codes) - LONG_TABLE)} others", "", ""])
    return [
        "## Rescued records",
        "",
        f"Kept though others rank before them: {summary}.",
        "",
        *table(["record", "id", "why"], rows, 3),
    ]


def pretrained(facts: Facts, corpus: Corpus) -> list[str]:
    """Every code that loads trained weights, and the lines that say so."""
    found = corpus.features.pretrained
    codes = [code for code in facts.verdicts if code in found]
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
    for code in codes[:WHOLE_TABLE]:
        evidence = "<br>".join(f"{item.line}: {code_span(item.text, 110)}" for item in found[code])
        rows.append([code_span(facts.names[code]), f"`{facts.ids[code][:12]}`", _what_became(code, facts), evidence])
    if len(codes) > WHOLE_TABLE:
        rows.append([f"{count(len(codes) - WHOLE_TABLE)} others", "", "", ""])
    return lines + table(["name", "id", "outcome", "line: code"], rows, 4)


def _what_became(code: int, facts: Facts) -> str:
    verdict = facts.verdicts[code]
    if verdict.kept or verdict.canonical is None:
        return "kept" if verdict.kept else "left out by an option"
    return f"{verdict.outcome}, {ratio(facts.similarity(code))} to {code_span(facts.names[verdict.canonical])}"


def invalid(facts: Facts) -> list[str]:
    """Why rows could not be used, and the first of each kind."""
    if not facts.invalid:
        return []
    kinds: dict[str, list[tuple[int, str, str]]] = {}
    for row, name, reason in facts.invalid:
        kinds.setdefault(re.sub(r"\d[\d,]*", "N", reason), []).append((row, name, reason))
    ranked = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = []
    for kind, cases in ranked[:LONG_TABLE]:
        first = ", ".join(f"{row}: {code_span(name, 40)}" for row, name, _ in cases[:3])
        same = len({reason for _, _, reason in cases}) == 1
        rows.append(
            [plain(cases[0][2] if same else kind), first + (", …" if len(cases) > 3 else ""), count(len(cases))]
        )
    if len(ranked) > LONG_TABLE:
        rest = sum(len(cases) for _, cases in ranked[LONG_TABLE:])
        rows.append([f"{count(len(ranked) - LONG_TABLE)} other reasons", "", count(rest)])
    return ["## Invalid rows", "", *table(["reason", "row: name", "rows"], rows, 2)]


LARGEST_GROUPS = 10
_MEMBERS_SHOWN = 3
_DIFF_LINES = 40
_LINE_LENGTH = 500
_CODE_LINES = 3_000  # of each code that are compared: a network has some hundreds


def largest_groups(facts: Facts) -> list[str]:
    """The kept records that stand for most others, with their least and most similar members."""
    groups = facts.groups()
    if not groups:
        return []
    biggest = len(groups[0][1])
    standing = f"{plural(len(groups), 'kept record stands', 'kept records stand')} for others"
    lines = ["## The largest groups", "", f"{standing}; the largest group has {plural(biggest + 1, 'record')}.", ""]
    rows = []
    for place, (canonical, members) in enumerate(groups[:LARGEST_GROUPS], start=1):
        similarities = [facts.similarity(code) for code in members]
        prefixes = Counter(prefix_of(facts.names[code]) for code in (canonical, *members))
        common = ", ".join(f"{code_span(prefix, 20)} {count(number)}" for prefix, number in _most(prefixes)[:3])
        rows.append(
            [
                f"{place}",
                code_span(facts.names[canonical]),
                common + (", …" if len(prefixes) > 3 else ""),
                count(len(members) + 1),
                ratio(similarities[0]),
                ratio(statistics.median(similarities)),
            ]
        )
    lines += table(["", "kept record", "prefixes", "records", "least similar", "median"], rows, 3)
    lines += ["Members of each, least and most similar to the kept record:", ""]
    for place, (_, members) in enumerate(groups[:LARGEST_GROUPS], start=1):
        if len(members) <= 2 * _MEMBERS_SHOWN:
            text = ", ".join(_member(code, facts) for code in members)
        else:
            least = ", ".join(_member(code, facts) for code in members[:_MEMBERS_SHOWN])
            text = f"{least} … {', '.join(_member(code, facts) for code in members[-_MEMBERS_SHOWN:])}"
        lines.append(f"{place}. {text}")
    return [*lines, ""]


def examples(facts: Facts, codes: CodeFile) -> list[str]:
    """For each stage a few removed codes against the kept record that stands for them."""
    lines: list[str] = []
    for stage in REMOVED:
        for phrase, code in _choose(stage, facts):
            verdict = facts.verdicts[code]
            if verdict.canonical is None:
                continue
            kept_name, name = facts.names[verdict.canonical], facts.names[code]
            title = f"### {stage.capitalize()}, {ratio(facts.similarity(code))}: {code_span(facts.names[code])}"
            lines += [title, "", f"Shared with kept {code_span(kept_name)}: {phrase}.", ""]
            lines += _diff(codes[verdict.canonical], codes[code], kept_name, name)
    if not lines:
        return []
    intro = "For each stage and kind a few pairs; `-` is the kept record, `+` the removed one."
    return ["## Removed pairs, side by side", "", intro, "", *lines]


def _choose(stage: str, facts: Facts) -> list[tuple[str, int]]:
    """Up to three codes a stage over the whole range: the least similar, a middle one, one of each nearer kind."""
    removed = [code for code in facts.removed(stage) if code != facts.verdicts[code].canonical]
    kinds = [phrase for phrase in reversed(HOW[stage]) if any(facts.how[code] == phrase for code in removed)]
    chosen: list[int] = []
    for place, phrase in enumerate(kinds):
        of_kind = [code for code in removed if facts.how[code] == phrase]
        wanted = [0, len(of_kind) // 2] if place == 0 else [len(of_kind) // 2]
        for at in wanted:
            code = _of_another_group(of_kind, at, chosen, facts)
            if len(chosen) < 3 and code not in chosen:
                chosen.append(code)
    return [(facts.how[code], code) for code in chosen]


def _of_another_group(codes: list[int], at: int, chosen: list[int], facts: Facts) -> int:
    """The code at a place, or the next one whose kept record, and if possible whose prefix, was not shown yet."""
    used = {facts.verdicts[code].canonical for code in chosen}
    prefixes = {prefix_of(facts.names[code]) for code in chosen}
    fresh = [code for code in codes[at:] if facts.verdicts[code].canonical not in used]
    varied = (code for code in fresh if prefix_of(facts.names[code]) not in prefixes)
    return next(varied, fresh[0] if fresh else codes[at])


def _diff(kept: str, removed: str, kept_name: str, removed_name: str) -> list[str]:
    left, right = kept.split("\n"), removed.split("\n")
    cut = max(len(left), len(right)) > _CODE_LINES
    found = list(
        difflib.unified_diff(
            left[:_CODE_LINES], right[:_CODE_LINES], shown(kept_name, 80), shown(removed_name, 80), "", "", 2, ""
        )
    )
    changed = [line for line in found[2:] if line[0] in "+-"]
    lines = block([shown(line, _LINE_LENGTH) for line in found[:_DIFF_LINES]], "diff") if found else []
    sizes = f"{plural(len(left), 'line')} kept, {plural(len(right), 'line')} removed"
    share = f"{plural(len(changed), 'changed line')}, {percent(len(changed), len(left) + len(right))} of both"
    note = f"{sizes}; {share}"
    if len(found) > _DIFF_LINES:
        note += f"; {plural(len(found) - _DIFF_LINES, 'more line')} of the difference not shown"
    if cut:
        note += f"; only the first {count(_CODE_LINES)} lines of each were compared"
    return [*lines, f"{note}.", ""]


def _member(code: int, facts: Facts) -> str:
    verdict = facts.verdicts[code]
    return f"{code_span(facts.names[code])} {ratio(facts.similarity(code))} {verdict.outcome}"


def _most(counted: Counter[str]) -> list[tuple[str, int]]:
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
    "over_limit": "it takes too much scratch space or too many threads",
    "crashed": "it ends the process",
    "error": "the trial itself failed",
    "unknown_input": "not tried: what LEMUR hands it cannot be told",
}


def runs(facts: Facts, corpus: Corpus, outcome: Outcome, counts: dict[str, Any]) -> list[str]:
    """How many of the kept networks run, why others do not, and each of those; nothing when runs were not checked."""
    if outcome.runs is None:
        return []
    found = counts["runs"]
    lines = [
        "## Networks that run",
        "",
        f"{plural(found['runs'], 'kept network')} of {count(len(outcome.kept))} ran:"
        " constructed as `Net(in_shape, out_shape, prm, device)` and run forward on two samples of the size that the"
        " record's transform gives, on a CPU, in eval mode, without trained weights (column `runs`)."
        f" {count(found['fails'])} do not run, {count(found['not_tried'])} could not be tried.",
        "",
    ]
    if found["errors"]:
        lines += _by_task(corpus, outcome)
        lines += _categories(found["errors"], "kept networks")
        lines += _failures(facts, outcome.runs)
    if found["left_out"]:
        lines += ["Left out because they do not run or could not be tried (`--require-runs`):", ""]
        lines += _categories(found["left_out"], "codes")
    return lines


def _by_task(corpus: Corpus, outcome: Outcome) -> list[str]:
    assert outcome.runs is not None
    tasks = corpus.rows.column("task").take([outcome.shown[code] for code in outcome.kept]).to_pylist()
    counted: dict[str, Counter[bool | None]] = {}
    for code, task in zip(outcome.kept, tasks, strict=True):
        counted.setdefault(task or "", Counter())[outcome.runs[code].runs] += 1
    ranked = sorted(counted.items(), key=lambda item: (-item[1].total(), item[0]))
    rows = [
        [code_span(task, 40), count(c.total()), count(c[True]), count(c[False]), count(c[None])]
        for task, c in ranked[:LONG_TABLE]
    ]
    return table(["task", "kept", "run", "do not", "not tried"], rows)


def _categories(errors: dict[str, int], unit: str) -> list[str]:
    ranked = sorted(errors.items(), key=lambda item: (-item[1], item[0]))
    whole = sum(errors.values())
    rows = [[f"`{name}`", _MEANING.get(name, ""), count(number), percent(number, whole)] for name, number in ranked]
    return table(["category", "meaning", unit, "%"], rows, 2)


def _failures(facts: Facts, results: dict[int, RunResult]) -> list[str]:
    failed = [code for code, result in results.items() if result.error is not None]
    failed.sort(key=lambda code: (str(results[code].category), facts.names[code], facts.ids[code]))
    rows = [
        [code_span(facts.names[code]), f"`{facts.ids[code][:12]}`", plain(results[code].error or "")]
        for code in failed[:WHOLE_TABLE]
    ]
    if len(failed) > WHOLE_TABLE:
        rows.append([f"{count(len(failed) - WHOLE_TABLE)} others", "", ""])
    return table(["name", "id", "error"], rows, 3)
