"""The parts of a curation report that show single records: the largest groups, and pairs side by side."""

import difflib
import statistics
from collections import Counter

from curate.corpus import CodeFile
from curate.options import prefix_of
from curate.report.facts import HOW, REMOVED, Facts
from lemur_core.files.markdown import block, code_span, count, percent, plural, ratio, shown, table

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
        similarities = [facts.fates[code].similarity for code in members]
        prefixes = Counter(prefix_of(facts.fates[code].name) for code in (canonical, *members))
        common = ", ".join(f"{code_span(prefix, 20)} {count(number)}" for prefix, number in _most(prefixes)[:3])
        rows.append(
            [
                f"{place}",
                code_span(facts.fates[canonical].name),
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
            fate = facts.fates[code]
            if fate.canonical is None:
                continue
            kept = facts.fates[fate.canonical]
            title = f"### {stage.capitalize()}, {ratio(fate.similarity)}: {code_span(fate.name)}"
            lines += [title, "", f"Shared with kept {code_span(kept.name)}: {phrase}.", ""]
            lines += _diff(codes[fate.canonical], codes[code], kept.name, fate.name)
    if not lines:
        return []
    intro = "For each stage and kind a few pairs; `-` is the kept record, `+` the removed one."
    return ["## Removed pairs, side by side", "", intro, "", *lines]


def _choose(stage: str, facts: Facts) -> list[tuple[str, int]]:
    """Up to three codes a stage over the whole range: the least similar, a middle one, one of each nearer kind."""
    removed = [code for code in facts.removed(stage) if code != facts.fates[code].canonical]
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
    used = {facts.fates[code].canonical for code in chosen}
    prefixes = {prefix_of(facts.fates[code].name) for code in chosen}
    fresh = [code for code in codes[at:] if facts.fates[code].canonical not in used]
    varied = (code for code in fresh if prefix_of(facts.fates[code].name) not in prefixes)
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
    fate = facts.fates[code]
    return f"{code_span(fate.name)} {ratio(fate.similarity)} {fate.stage}"


def _most(counted: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counted.items(), key=lambda item: (-item[1], item[0]))
