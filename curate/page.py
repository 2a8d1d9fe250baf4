"""What there is to see of a snapshot: from rows to records, splits and leaks, each record with those it stands for."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.union import record_files
from lemur_core.files.markdown import count, percent, plural, ratio
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.picture import Box, boxes
from manifests.manifest import Manifest
from manifests.page.frame import (
    ENTRIES,
    Entry,
    Library,
    Page,
    View,
    bars,
    code,
    facts,
    graph,
    link,
    table,
    versions,
)
from manifests.records import SPLITS

#: What takes codes away, in the order in which it does, as it is told.
_STAGES = {
    "filter": "left out by options",
    "exact": "exact duplicates",
    "lexical": "lexical near-duplicates",
    "structural": "structural near-duplicates",
    "graph": "other texts of the same computation",
    "leak": "near to records of two splits",
}
_AGREEMENT = {"same": "same graph", "widths": "same graph up to widths", "different": "another graph"}
#: Boxes up to which each operation of a network has its own.
_BOXES = 40
_GROUPS, _LARGEST = 25, 12
_BINS = 20

#: The rows of `decisions.parquet` that speak for a code.
_COLUMNS = ("id", "nn", "kept", "stage", "canonical", "similarity", "agreement")
_SHOWN = (
    *("id", "nn", "prefix", "family", "split", "cluster", "score", "task", "dataset", "metric", "epoch", "accuracy"),
    *("weight", "pretrained", "runs", "runs_error", "dead_classes", "unused_parameters", "graph"),
)


def snapshot_page(folder: Path, manifest: Manifest) -> Page:
    """The page of a snapshot, read from its tables; the codes of its entries are read as they are written."""
    decided = _decided(folder)
    records = [row for path in record_files(folder) for row in _read(path, _SHOWN)]
    records.sort(key=lambda row: (row["prefix"], row["cluster"], row["nn"], row["id"]))  # near texts side by side
    standing: dict[str, list[dict[str, Any]]] = defaultdict(list)
    stages: Counter[str] = Counter()
    for row in decided:
        stages["kept" if row["kept"] else row["stage"]] += 1
        if not row["kept"] and row["canonical"]:
            standing[row["canonical"]].append(row)
    for others in standing.values():
        others.sort(key=lambda one: (one["nn"], one["id"]))
    rows, source = manifest.counts["rows"]["input"], str(manifest.parameters.get("source"))
    kept, codes = len(records), stages.total()
    told = [f"{count(sum(row['split'] == split for row in records))} {split}" for split in SPLITS]
    views = [
        facts("Overview", _overview(manifest, kept, codes)),
        _funnel(stages, kept, rows),
        *_similarities(decided),
        _splits(records, stages),
        *(_groups(manifest, name, title) for name, title in (("prefixes", "By prefix"), ("families", "By family"))),
    ]
    most = sorted(records, key=lambda row: (-len(standing[row["id"]]), row["id"]))[:ENTRIES]
    chosen = {row["id"] for row in most}
    listed = [row for row in records if row["id"] in chosen]
    library = Library(
        title="Records",
        noun="records",
        facets=("split", "prefix", "family", "graph", "pretrained"),
        numbers=("stands for", "score"),
        entries=[_entry(row, standing.get(row["id"], ())) for row in listed],
        views=_views(folder, listed, standing),
        total=kept,
        elsewhere="data/records",
        order="stands for",
    )
    lead = (
        f"{count(kept)} distinct networks of {plural(codes, 'code')} ({percent(kept, codes)}), from"
        f" {plural(rows, 'row')}: {', '.join(told)}. Each one opens to what it stands for, compared line by line."
    )
    return Page(f"Curated snapshot of {source}", "snapshot", lead, [view for view in views if view["rows"]], library)


def _overview(manifest: Manifest, kept: int, codes: int) -> list[tuple[str, Any]]:
    asked, graphs = manifest.parameters, manifest.counts.get("graphs", {})
    return [
        ("source", asked.get("source")),
        ("rows, codes, kept", f"{count(manifest.counts['rows']['input'])}, {count(codes)}, {count(kept)}"),
        ("profile", asked.get("profile")),
        ("similar from", f"lexical {asked.get('lexical_threshold')}, structural {asked.get('structural_threshold')}"),
        ("graphs traced", f"{count(graphs['kept'])} of the kept, no two the same" if graphs else None),
        ("licence", manifest.details.get("license")),
        ("made with", f"lemur-curator {manifest.versions.get('lemur-curator')}, seed {asked.get('seed')}"),
        ("in words", [link("report.md", "report.md"), link("manifest.json", "manifest.json")]),
    ]


def _decided(folder: Path) -> list[dict[str, Any]]:
    """One decision for each code, its best: kept, else the first that is no further row of a network."""
    with pq.ParquetFile(folder / "decisions.parquet") as file:
        there = [name for name in _COLUMNS if name in file.schema_arrow.names]
        found = file.read(there)
    found = found.filter(pc.and_(pc.is_valid(found["id"]), pc.not_equal(pc.fill_null(found["stage"], ""), "repeat")))
    best: dict[str, dict[str, Any]] = {}
    for row in found.to_pylist():
        known = best.get(row["id"])
        if known is None or (row["kept"] and not known["kept"]) or known["stage"] == "filter":
            best[row["id"]] = row
    return list(best.values())


def _funnel(stages: Mapping[str, int], kept: int, rows: int) -> View:
    left = stages.total() if isinstance(stages, Counter) else sum(stages.values())
    lines = [("distinct codes", float(left), float(left), count(left))]
    for stage, label in _STAGES.items():
        if stages[stage]:
            before, left = left, left - stages[stage]
            lines.append((label, float(left), float(before), f"−{count(stages[stage])}"))
    lines.append(("kept", float(kept), float(kept), count(kept)))
    intro = f"Codes that are left after each step; light, what it took off. {plural(rows, 'row')} hold them."
    return bars("From rows to records", lines, intro)


def _similarities(decided: Sequence[Mapping[str, Any]]) -> Iterator[View]:
    """How near the removed are to what stands for them."""
    for stage in ("lexical", "structural"):
        found = [row["similarity"] for row in decided if row["stage"] == stage and row["similarity"] is not None]
        bins = Counter(min(int(value * 100 + 1e-9), 100) for value in found)
        rows = [(f"{at / 100:.2f}", float(bins[at]), 0.0, count(bins[at])) for at in sorted(bins)]
        intro = "Removed codes by similarity to the kept record that stands for them, rounded down."
        yield bars(f"{stage.capitalize()} similarity", rows, intro)


def _splits(records: Sequence[Mapping[str, Any]], stages: Mapping[str, int]) -> View:
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for row in records:
        groups[row["cluster"]][row["split"]] += 1
    crossing = sum(len(found) > 1 for found in groups.values())
    rows = []
    for split in SPLITS:
        own = [found.total() for found in groups.values() if found[split]]
        number = sum(row["split"] == split for row in records)
        rows.append([split, number, percent(number, len(records)), len(own), max(own, default=0)])
    leaks = f" {plural(stages['leak'], 'code')} near to two published splits left out." if stages["leak"] else ""
    intro = (
        "What is alike, by text, structure or graph, is one group and stays in one split:"
        f" {plural(crossing, 'group')} of {count(len(groups))} in more than one.{leaks}"
    )
    return table("Splits and leaks", ["split", "records", "share", "groups", "largest group"], rows, intro)


def _groups(manifest: Manifest, name: str, title: str) -> View:
    found = sorted(manifest.counts.get(name, {}).items(), key=lambda item: (-item[1]["before"], item[0]))
    what = "networks" if name == "prefixes" else "codes"
    rows = [
        (label or "(none)", float(n["kept"]), float(n["before"]), f"{count(n['kept'])} of {count(n['before'])}")
        for label, n in found[:_LARGEST]
    ]
    more = f", the largest {_LARGEST} of {count(len(found))}" if len(found) > _LARGEST else ""
    return bars(title, rows, f"Records kept of the {what} that came in{more}.")


# -- records ------------------------------------------------------------------------------------------------------


def _entry(row: Mapping[str, Any], removed: Sequence[Mapping[str, Any]]) -> Entry:
    return Entry(
        name=row["nn"] or row["id"][:16],
        note=f"{row['family']} · group {row['cluster']}",
        facets=(
            row["split"],
            row["prefix"],
            row["family"],
            "known" if row.get("graph") else "not known",
            "pretrained" if row["pretrained"] else "from scratch",
        ),
        numbers=(len(removed), None if row["score"] is None else round(row["score"], 4)),
        further=tuple(one["nn"] or one["id"][:16] for one in removed),
    )


def _views(
    folder: Path, records: Sequence[dict[str, Any]], standing: Mapping[str, Sequence[dict[str, Any]]]
) -> Iterator[list[View]]:
    wanted = {row["id"] for row in records}
    others = {other["id"] for row in records for other in standing.get(row["id"], ())}
    texts = _codes(record_files(folder), wanted) | _codes([folder / "removed.parquet"], others)
    graphs = _graphs(folder, wanted)
    for row in records:
        removed = standing.get(row["id"], ())
        drawn = graphs.get(row["id"])
        views = [facts("Record", _record(row))]
        text = texts.get(row["id"], "")
        if removed:
            intro = f"{plural(len(removed), 'code')} removed for it. Left the kept code, right the removed one."
            compared = [(_told(one), texts.get(one["id"], "")) for one in removed]
            views.append(versions("Stands for", text, compared, intro))
        views += [*([graph("What it computes", drawn)] if drawn else []), code("Code", text)]
        yield views


def _record(row: Mapping[str, Any]) -> list[tuple[str, Any]]:
    measured = ", ".join(str(row[name]) for name in ("task", "dataset", "metric") if row[name])
    accuracy = None if row["accuracy"] is None else f"{row['accuracy']:.4f} after {row['epoch']} epochs ({measured})"
    runs = {True: "yes", False: f"no: {row.get('runs_error')}", None: None}[row.get("runs")]
    return [
        ("id (SHA-256)", row["id"]),
        ("split, group", f"{row['split']}, {row['cluster']}"),
        ("prefix, family", f"{row['prefix']}, {row['family']}"),
        ("best result", accuracy),
        ("score", None if row["score"] is None else f"{row['score']:.4f}, its percentile within that benchmark"),
        ("runs", runs),
        ("pretrained", "loads trained weights" if row["pretrained"] else None),
        ("dead classes", ", ".join(row.get("dead_classes") or ())),
        ("unused parameters", ", ".join(row.get("unused_parameters") or ())),
    ]


def _told(row: Mapping[str, Any]) -> str:
    similarity = "" if row["similarity"] is None else f" {ratio(row['similarity'])}"
    agrees = _AGREEMENT.get(row.get("agreement") or "")
    return f"{row['stage']}{similarity}{f', {agrees}' if agrees else ''}"


def _codes(files: Sequence[Path], wanted: set[str]) -> dict[str, str]:
    """The codes of some ids."""
    names = pa.array(sorted(wanted), pa.string())
    found: dict[str, str] = {}
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=500, columns=["id", "nn_code"]):
                some = batch.filter(pc.is_in(batch["id"], value_set=names))
                found |= dict(zip(some["id"].to_pylist(), some["nn_code"].to_pylist(), strict=True))
    return found


def _graphs(folder: Path, wanted: set[str]) -> dict[str, list[Box]]:
    """What some codes compute in eval mode; those alone that this release of torch can read."""
    path, found = folder / "graphs.parquet", {}
    if not path.exists():
        return {}
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=100, columns=["id", "eval"]):
            for row in batch.to_pylist():
                if row["id"] in wanted and row["eval"]:
                    try:
                        found[row["id"]] = boxes(Graph.from_json(json.loads(row["eval"])), _BOXES)
                    except ValueError:  # recorded by another torch
                        return {}
    return found


def _read(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows of a table, with those of the columns that it has; older ones lack some."""
    with pq.ParquetFile(path) as file:
        there = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=5_000, columns=there):
            yield from batch.to_pylist()
