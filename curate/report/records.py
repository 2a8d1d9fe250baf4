"""The sections of a curation report that list single records: rescued, with trained weights, invalid."""

import re
from collections import Counter

from curate.corpus import Corpus
from curate.options import prefix_of
from curate.report.facts import Facts
from curate.report.sections import LONG_TABLE
from lemur_core.files.markdown import code_span, count, plain, plural, ratio, table

#: Rows of a table that shall be whole, unless something is very odd.
WHOLE_TABLE = 500


def rescued(facts: Facts) -> list[str]:
    """Records that are kept for the support of a prefix or family."""
    codes = [code for code, fate in facts.fates.items() if fate.rescued is not None]
    if not codes:
        return []
    codes.sort(key=lambda code: (prefix_of(facts.fates[code].name), facts.fates[code].name, facts.ids[code]))
    kinds = Counter(facts.fates[code].rescued for code in codes)
    labels = {"prefix": "for the minimum of a prefix", "topup": "as a top-up"}
    summary = ", ".join(
        f"{count(number)} {labels.get(kind or '', kind)}" for kind, number in sorted(kinds.items(), key=str)
    )
    rows = [
        [code_span(facts.fates[code].name), f"`{facts.ids[code][:12]}`", plain(facts.fates[code].reason)]
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
    codes = [code for code in facts.fates if code in found]
    if not codes:
        return []
    codes.sort(key=lambda code: (facts.fates[code].stage != "kept", facts.fates[code].name, facts.ids[code]))
    kept = sum(facts.fates[code].stage == "kept" for code in codes)
    lines = ["## Records with trained weights", ""]
    loading = plural(len(codes), "code loads", "codes load")
    lines += [
        f"{loading} trained weights, {count(kept)} of them kept. Their accuracies"
        " say little about an architecture; column `pretrained` marks them, and `--from-scratch` leaves them out.",
        "",
    ]
    rows = []
    for code in codes[:WHOLE_TABLE]:
        fate = facts.fates[code]
        evidence = "<br>".join(f"{item.line}: {code_span(item.text, 110)}" for item in found[code])
        rows.append([code_span(fate.name), f"`{facts.ids[code][:12]}`", _what_became(code, facts), evidence])
    if len(codes) > WHOLE_TABLE:
        rows.append([f"{count(len(codes) - WHOLE_TABLE)} others", "", "", ""])
    return lines + table(["name", "id", "outcome", "line: code"], rows, 4)


def _what_became(code: int, facts: Facts) -> str:
    fate = facts.fates[code]
    if fate.stage == "kept" or fate.canonical is None:
        return "kept" if fate.stage == "kept" else "left out by an option"
    return f"{fate.stage}, {ratio(fate.similarity)} to {code_span(facts.fates[fate.canonical].name)}"


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
