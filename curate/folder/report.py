"""What came out of a curation, in tables: `report.md`, and the top of the page. All numbers are those of the folder."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.folder.snapshot import NOT_COMPARED, SAMPLED
from curate.model.options import LEAK_THRESHOLD, describe_purpose
from curate.published.outcome import REMOVED, STAGES
from lemur_core.files.markdown import count, percent, plural
from lemur_core.sandbox.runtime import option_for
from manifests.folders import frame
from manifests.folders.kinds import SNAPSHOT
from manifests.folders.report import LONGEST, fold, settings, shares
from manifests.folders.tables import read_table
from manifests.records import SPLITS, Decision, LemurRecord, NetworkRow

#: A part of a manifest.
Stated = Mapping[str, Any]

END = (
    "## Single networks\n\n`decisions.parquet` has one row for every input row: its outcome, the kept record that"
    " represents it, how similar the two are, and why. `lemur show NAME --in DIR` shows one of them with its code."
)


def overview(folder: Path, parameters: Stated, counts: Stated, details: Stated) -> frame.Page:
    """Return title, lead and views of a snapshot, from its tables and these fields of its manifest."""
    kept, codes, rows = counts["rows"]["kept"], counts["codes"], counts["rows"]["input"]
    splits = ", ".join(f"{count(number)} {split}" for split, number in counts["splits"].items())
    lead = (
        f"{count(kept)} of {plural(codes, 'distinct code')} kept ({percent(kept, codes)}): {splits}. The source has"
        f" {plural(rows, 'row')}, evaluations of {plural(counts['networks'], 'network')} (a name with a code)."
    )
    networks = read_table(
        SNAPSHOT.files(folder, "networks"), NetworkRow, ("nn", "prefix", "family", "stage", "split", "graph")
    )
    decisions = read_table(
        SNAPSHOT.files(folder, "decisions"), Decision, ("row", "id", "nn", "stage", "reason", "agreement")
    )
    views = [
        _funnel(counts, decisions, describe_purpose(parameters["graph"])),
        *(_groups(networks, column) for column in ("prefix", "family")),
        _splits(read_table(SNAPSHOT.files(folder, "records"), LemurRecord, ("split", "cluster"))),
        *_reasons(counts, details),
        _invalid(decisions),
        settings(parameters),
    ]
    title = f"Curated snapshot of {parameters['source']}"
    return frame.Page(title, "snapshot", lead, [view for view in views if view["rows"]])


def _funnel(counts: Stated, decisions: pa.Table, purpose: str) -> frame.View:
    """Return the rows and codes by outcome; each column adds up. Args: purpose: what the selection is for."""
    rows, codes, whole = counts["rows"], counts["stages"], counts["codes"]
    lines: list[list[frame.Cell]] = [["in", rows["input"], whole, percent(whole, whole)]]
    for stage, label in {**STAGES, "kept": "kept"}.items():
        if rows[stage] or stage == "kept":
            number = codes.get(stage)
            lines.append([label, rows[stage], number, None if number is None else percent(number, whole)])
    intro = (
        "Rows are evaluations; a further row of a network is no duplicate. No two kept records are near-duplicates,"
        " every removed one names a kept record that it is near, and nothing close crosses the splits."
    )
    compared = "No two of them compute the same, as far as they run." if "graphs" in counts else NOT_COMPARED
    by_text = {"lexical", "structural"} & {stage for stage, number in codes.items() if number}
    parts = [SAMPLED, _agreements(decisions)] if by_text else []
    text = " ".join(filter(None, (purpose, intro, compared, *parts)))
    return frame.table("From rows to records", ["", "rows", "codes", "% of codes"], lines, text)


def _agreements(decisions: pa.Table) -> str:
    """Return what the graphs say of the removals by text, where both codes were traced."""
    by_text = decisions.filter(pc.is_in(decisions["stage"], pa.array(["lexical", "structural"])))
    agree = Counter(dict(zip(by_text["id"].to_pylist(), by_text["agreement"].to_pylist(), strict=True)).values())
    known = agree.total() - agree[None]
    text = (
        f"Of {plural(known, 'removal')} by text here with a graph on both sides, {count(agree['same'])} compute the"
        f" same as the kept code, {count(agree['widths'])} the same up to widths, {count(agree['different'])} another"
        " architecture."
    )
    return text if known else ""


def _groups(networks: pa.Table, column: str) -> frame.View:
    """Return the codes of each prefix or family: those that came in, were removed at each stage, and are kept.

    Of a prefix, which is what one generator wrote, also how many computations its traced codes are, and how many codes
    are kept of each quarter of its names, in their order: what is new over time.
    """
    by_name = column == "prefix"
    rows = networks.select([column, "stage", "split", "nn", "graph"]).to_pylist()
    members: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: _natural(row["nn"])):
        members.setdefault(row[column], []).append(row)
    every = Counter(row["stage"] for row in rows)
    removed = [stage for stage in ("filter", *REMOVED) if every[stage]]

    def cells(name: str, own: Sequence[Mapping[str, Any]], *, single: bool = True) -> list[frame.Cell]:
        stages, splits = Counter(row["stage"] for row in own), Counter(row["split"] for row in own if not row["stage"])
        kept, dropped = stages[None], sum(stages[stage] for stage in REMOVED)
        line: list[frame.Cell] = [name, len(own)]
        if by_name:
            graphs = [row["graph"] for row in own if row["graph"]]
            ends = [len(own) * quarter // 4 for quarter in range(5)]
            quarters = [sum(not row["stage"] for row in own[start:end]) for start, end in pairwise(ends)]
            line += [
                f"{count(len(set(graphs)))} of {count(len(graphs))}" if graphs else None,
                " · ".join(map(count, quarters)) if single else None,
            ]
        line += [*(stages[stage] for stage in removed), kept, percent(dropped, kept + dropped)]
        return [*line, *(splits[split] for split in SPLITS)]

    taken = {name: sum(row["stage"] != "filter" for row in own) for name, own in members.items()}
    ranked = sorted(members, key=lambda name: (-taken[name], name))
    listed = [name for name in ranked if taken[name]]
    listed = listed if len(listed) <= LONGEST + 1 else listed[:LONGEST]
    lines = [cells(name or "(none)", members[name]) for name in listed]
    if rest := [name for name in ranked if name not in listed]:
        lines.append(cells(plural(len(rest), "other"), [row for name in rest for row in members[name]], single=False))
    further = ["computations of the traced", "kept of each quarter of names"] if by_name else []
    head = [column, "codes in", *further, *removed, "kept", "% dropped", *SPLITS]
    return frame.table(f"By {column}", head, lines)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names with their numbers by value: ga-9 before ga-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _splits(records: pa.Table) -> frame.View:
    sizes = Counter(zip(records["split"].to_pylist(), records["cluster"].to_pylist(), strict=True))
    rows: list[list[frame.Cell]] = []
    for split in SPLITS:
        own = [number for (of, _), number in sizes.items() if of == split]
        rows.append([split, sum(own), percent(sum(own), len(records)), len(own), max(own, default=0)])
    crossing = sum(number > 1 for number in Counter(cluster for _, cluster in sizes).values())
    intro = (
        f"Records that are alike (a lexical Jaccard of {LEAK_THRESHOLD:.2f} or more, an equal fingerprint, an equal"
        f" computation) form a group, which is in one split: {plural(crossing, 'group')} in more than one. Test and"
        " validation get their share of each prefix and family if its groups allow that: a group that is larger than"
        " half of such a split is in train."
    )
    return frame.table("Splits", ["split", "records", "%", "groups", "largest group"], rows, intro)


def _reasons(counts: Stated, details: Stated) -> Iterator[frame.View]:
    """Yield what ran, why other codes did not, and where codes are from."""
    if graphs := counts.get("graphs"):
        numbers = {
            "codes with a graph": graphs["traced"],
            "codes whose numbers were compared": graphs["measured"],
            "kept records with a graph": graphs["kept"],
            "different computations of these": graphs["distinct"],
            "different up to widths": graphs["distinct_up_to_widths"],
        }
        facts: list[tuple[str, frame.Cell]] = [*numbers.items()]
        yield frame.facts(
            "What the networks compute",
            # A graph that several computations have is a fault of ours; none was removed for it.
            [*facts, ("faulty graphs", ", ".join(graph[:16] for graph in graphs["faults"]))],
        )
        intro = "Codes without a graph are decided by their text alone."
        failed = sum(graphs["not_traced"].values())
        yield shares("Codes without a graph", ("reason", "codes"), graphs["not_traced"], failed, intro)
        packages = [
            [name, number, option_for(name) or "--runtime NAME"] for name, number in graphs["missing_packages"].items()
        ]
        yield frame.table("Packages outside the runtime", ["package", "codes", "the option that allows it"], packages)
    if left_out := counts.get("runs", {}).get("left_out"):
        intro = "Left out, since they do not run or could not be tried (--require-runs)."
        yield shares("Networks that do not run", ("reason", "codes"), left_out, sum(left_out.values()), intro)
    if origins := counts.get("origins"):
        of_kept, of_removed = (origins[part]["licenses"] for part in ("kept", "removed"))
        rows = [[name, of_kept.get(name, 0), of_removed.get(name, 0)] for name in sorted({*of_kept, *of_removed})]
        stated = details["origins"]
        intro = (
            f"Compared with {plural(stated['blocks'], 'block')} of repositories, class by class (Jaccard ≥"
            f" {stated['threshold']:g}, classes of {stated['least_shingles']} shingles or more):"
            f" {plural(origins['kept']['codes'], 'kept record')} and"
            f" {plural(origins['removed']['codes'], 'removed code')} have a class of one of them. Publishing leaves"
            " out code whose license forbids redistribution."
        )
        yield frame.table("Where codes are from", ["license", "kept records", "removed codes"], fold(rows), intro)


def _invalid(decisions: pa.Table) -> frame.View:
    """Return why rows are unusable, with the first of each kind."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in decisions.filter(pc.equal(decisions["stage"], "invalid")).to_pylist():
        kinds.setdefault(re.sub(r"\d[\d,]*", "N", row["reason"]), []).append(row)
    rows: list[list[frame.Cell]] = []
    for kind, cases in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
        first = ", ".join(f"{row['row']}: {row['nn'] or '(none)'}" for row in cases[:3])
        reason = cases[0]["reason"] if len({row["reason"] for row in cases}) == 1 else kind
        rows.append([reason, first + (", …" if len(cases) > 3 else ""), len(cases)])
    return frame.table("Invalid rows", ["reason", "row: name", "rows"], fold(rows))
