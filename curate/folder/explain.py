"""What a snapshot knows about one network: why it was kept or removed, and where it is from.

All rows with one name and one code are one network. A code may have several names, so the two are looked up
separately: an id selects a code, a name selects a network.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from curate.compute.graphs import GraphTrace
from curate.published.outcome import DUPLICATE_STAGES
from lemur_core.describe.picture import check_picture, draw
from lemur_core.files import Json
from lemur_core.files.errors import MissingNameError, UserError, near_names
from lemur_core.files.markdown import make_visible, plural, ratio
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import differences, share
from manifests.folders.kinds import SNAPSHOT, FolderLink, FoundItem, lines_text
from manifests.folders.tables import R, as_records, find_row, read_table
from manifests.provenance import REQUIREMENTS, TABLE
from manifests.provenance.swhid import content_swhid
from manifests.records import Decision, GraphRow, LemurRecord, Measurement, NetworkRow

#: Maximum number of entries shown from each list.
SHOWN = 5
#: Hexadecimal digits that an abbreviated id must have.
MIN_ID_DIGITS = 6

_RECORD_COLUMNS = (
    *("nn", "task", "dataset", "metric", "epoch", "accuracy", "best_accuracy", "best_epoch"),
    *("family", "split", "weight", "cluster", "score", "pretrained", "runs", "runs_error"),
    *("license", "origin", "origin_similarity", "origin_license"),
)
#: Outcomes by priority: the first row with the best of these is the representative of a network.
_OUTCOME_PRIORITY = (None, "lexical", "structural", "graph", "exact", "filter", "leak", "invalid", "repeat")
#: Where the codes are in a wheel of nn-dataset, one file per network; must match `curate.sources.lemur`.
_CODES = "ab/nn/nn"
#: The files read from an extraction folder, and the names of its rows; must match `curate.sources.folders`.
_EXTRACTED, _BLOCK = (f"/{TABLE}", f"/{REQUIREMENTS}"), "block-"

#: A label, and the text behind it; without a label, a further line of the entry above.
Entries = Iterator[tuple[str, str]]


class SnapshotTables:
    """The tables of a snapshot folder; code is read for single ids only. Raises: UserError if it is no snapshot."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, SNAPSHOT.open(folder)
        columns = [name for name in Decision.model_fields if name != "agreement"]
        self.decisions = read_table([folder / "decisions.parquet"], Decision, columns).combine_chunks()

    def rows(self, mask: pa.Array | pa.ChunkedArray) -> list[Decision]:
        """Return the decisions selected by a mask, in input order."""
        return as_records(self.decisions.filter(mask), Decision)

    def select_rows(self, column: str, value: str) -> list[Decision]:
        """Return the decisions on all rows with this name (`nn`) or code (`id`)."""
        return self.rows(pc.equal(self.decisions[column], value))

    def find(self, digest: str | None, record: type[R], tables: Sequence[str], columns: Sequence[str] = ()) -> R | None:
        """Return the row of a code."""
        files = [path for table in tables for path in SNAPSHOT.files(self.folder, table)]
        return None if digest is None else find_row(files, record, digest, columns)

    def graph(self, digest: str | None) -> GraphRow | None:
        """Return the graph row of a code: what it computes, or why that is unknown; None if it was not traced."""
        return self.find(digest, GraphRow, ["graphs"], tuple(GraphRow.model_fields))

    def code(self, digest: str | None) -> str | None:
        """Return the code of an id, kept or removed."""
        row = self.find(digest, NetworkRow, ["records", "networks"], ("nn_code",))  # records have this column, too
        return None if row is None else row.nn_code


def explain(folder: Path, name_or_id: str) -> FoundItem:
    """Explain what a snapshot decided about one network.

    Facts: `name`, `id`, `kept`, `stage`, `rescued`, `reason`, `row`; `further_rows` of the network, `unusable_rows` of
    the name, `other_names` of the code; of a removed duplicate `canonical`, `similarity`, `threshold`, `score`, `diff`
    and, if that is another code, `graph_difference`; of a kept network `record` without its code, and `stands_for`;
    `graph`; `measurements` on devices and the like.

    Args: name_or_id: an exact name, an id, or the first six or more digits of one.
    Raises: UserError if the folder is not a snapshot, or no or several networks match.
    """
    with SNAPSHOT.reading(folder):
        snapshot = SnapshotTables(folder)
        rows = _find(snapshot, name_or_id)
        facts, record = _gather(snapshot, rows)
        code = snapshot.code(facts["id"])
    lines = [f"{label:<12}{text}" for label, text in _list_entries(facts, record)]
    if facts["stands_for"] is not None:
        lines += _print_duplicates(facts["stands_for"])
    if facts["diff"] is not None:
        lines += ["", *(facts["diff"] or ["the codes have equal lines"])]
    return FoundItem(
        tuple(_list_links(snapshot, facts, code)),
        () if facts["id"] is None else (facts["id"],),
        [make_visible(line) for line in lines],
        facts,
        draw=partial(draw_graph, facts),
    )


# --- in print -----------------------------------------------------------------------------------------------------


def describe_outcome(stage: str | None) -> str:
    """Describe whether a row was kept, or at which stage it was removed."""
    return "kept" if stage is None else f"removed at stage {stage}"


def _list_entries(facts: Json, record: LemurRecord | None) -> Entries:
    yield "name", facts["name"] or "(none)"
    yield "id", facts["id"] or "none: the row has no usable code"
    causes = {
        "prefix": " (for the support of its prefix)",
        "topup": " (as a top-up of its prefix)",
        "invalid": ": it cannot be used",
        "filter": ": an option of the run left it out",
    }
    yield "outcome", describe_outcome(facts["stage"]) + causes.get(facts["rescued"] or facts["stage"] or "", "")
    if facts["reason"] != "kept":
        yield "reason", facts["reason"]
    if (canonical := facts["canonical"]) is not None:
        score = "no score" if canonical["score"] is None else f"score {canonical['score']:.4f}"
        about = f"kept, {canonical['split']}, {score}" if canonical["kept"] else "not kept itself"
        yield "canonical", f"{canonical['name']} ({about})"
        same = canonical["id"] == facts["id"]
        yield "", "the same code, character for character" if same else canonical["id"]
        limit = f" ({facts['stage']} Jaccard; the threshold is {facts['threshold']:g})" if facts["threshold"] else ""
        yield "similarity", ("not recorded" if facts["similarity"] is None else ratio(facts["similarity"])) + limit
    if facts["score"] is not None:
        yield "score", f"{facts['score']:.4f}"
    if record is not None:
        yield from describe_record(record)
    if facts["graph"] is not None:
        yield from _list_graph(facts["graph"], facts["graph_difference"])
    for measured in facts["measurements"][:SHOWN]:
        result = {None: "", True: ", valid", False: ", failed"}[measured["valid"]]
        duration = "" if measured["duration"] is None else f", duration {measured['duration']:,g}"
        yield "measured", f"{measured['kind']}: {measured['device'] or measured['place']}{result}{duration}"
    further = facts["further_rows"]
    more = f", and {plural(further, 'further row')} of this network" if further else ""
    yield "row", f"{facts['row']:,}{more}"
    unusable = [f"row {other['row']:,} of this name: {other['reason']}" for other in facts["unusable_rows"]]
    yield from (("unusable", text) for text in unusable[:SHOWN])
    if len(unusable) > SHOWN:
        yield "", f"and {len(unusable) - SHOWN:,} more"
    for other in facts["other_names"]:
        yield "also named", f"{other['name']}: {describe_outcome(other['stage'])}"


def describe_record(record: LemurRecord) -> Entries:
    """Yield the facts of a kept record as `lemur show` prints them, and the page shows them."""
    benchmark = " / ".join(text for text in (record.task, record.dataset, record.metric) if text is not None)
    yield "split", record.split
    yield "cluster", record.cluster
    yield "score", "none: no accuracy is known" if record.score is None else f"{record.score:.4f}, from all its results"
    for label, value, epoch, text in (
        ("shown", record.accuracy, record.epoch, ": the row of best percentile"),
        ("best", record.best_accuracy, record.best_epoch, ""),
    ):
        if value is not None:
            yield label, f"{value:.4f} on {benchmark}{'' if epoch is None else f', epoch {epoch}'}{text}"
    yield "family", record.family
    if record.weight != 1:
        yield "weight", f"{record.weight:g}"
    if record.pretrained:
        yield "pretrained", "yes: the code loads trained weights"
    if record.runs:
        yield "runs", "yes: constructed and run forward once"
    elif record.runs_error is not None:
        yield "runs", f"{'no' if record.runs is False else 'not tried'}: {record.runs_error}"
    if record.license:
        yield "license", record.license
    if record.origin:
        near = f"{ratio(record.origin_similarity or 0.0)} to a class of it"
        yield "from", f"{record.origin} ({record.origin_license}), {near}"


_AGREEMENT = {
    "same": "both compute the same",
    "widths": "both compute the same up to widths",
    "different": "they compute different things",
}


def _list_graph(row: Json, difference: Json | None) -> Entries:
    if row["graph"] is None:
        yield "graph", f"none: {row['error'] or ''}"
        return
    yield "graph", row["graph"]
    if row["dead_classes"]:
        yield "", f"never runs: {', '.join(row['dead_classes'])}"
    if difference is None:
        return
    agreement = difference["agreement"]
    parts = [part for part, key in (("start", "starts_alike"), ("train", "trains_alike")) if not difference[key]]
    also = f", but {' and '.join(parts)} differently" if parts and agreement == "same" else ""
    common = f"; {difference['share']:.0%} of their subtrees in common" if agreement == "different" else ""
    yield "computation", _AGREEMENT[agreement] + also + common
    for line in difference["differences"]:
        yield "", line


def _print_duplicates(stands_for: Json) -> Iterator[str]:
    if not (total := stands_for["networks"]):
        yield f"{'stands for':<12}itself alone"
        return
    parts = [f"{count:,} {stage}" for stage, count in stands_for["by_stage"].items() if count]
    yield f"{'stands for':<12}{plural(total, 'removed network')}: {', '.join(parts)}"
    nearest, least_similar = stands_for["nearest"], stands_for["least_similar"]
    for label, entries in (("nearest" if least_similar else "these are", nearest), ("least similar", least_similar)):
        if entries:
            yield f"  {label}:"
        for entry in entries:
            yield f"    {ratio(entry['similarity'])} {entry['stage']:<11}{entry['name']}  {entry['id'][:16]}"


def draw_graph(facts: Json, path: Path) -> str:
    """Draw what an explained network computes in eval mode, and return a message that says so.

    Raises: UserError if that is unknown; UsageError unless the file is an `.svg`.
    """
    check_picture(path)
    row, name = facts["graph"], f"{facts['name']} {(facts['id'] or '')[:16]}"
    if row is None:
        raise UserError(f"{name}: was not traced, so there is no graph to draw; `lemur curate --graph all` traces all")
    if row["graph"] is None:
        raise UserError(f"{name}: has no graph to draw: {make_visible(row['error'] or '')}")
    try:
        graph = Graph.from_json(json.loads(row["eval"] or ""))
    except ValueError as error:
        raise UserError(f"{name}: its graph cannot be read: {error}; create the snapshot again") from error
    return f"{path}: {plural(draw(graph, path, name), 'box', 'boxes')}, what it computes in eval mode"


# --- where it is from ---------------------------------------------------------------------------------------------


def _list_links(snapshot: SnapshotTables, facts: Json, code: str | None) -> Iterator[FolderLink]:
    """Yield the network, and where its row was read, as far as the manifest and its name say: the input, the place."""
    manifest, name, record, canonical = snapshot.manifest, facts["name"], facts["record"], facts["canonical"]
    removed = f"removed at stage {facts['stage']}: {facts['reason']}"
    about = {
        "id": facts["id"],
        "outcome": f"kept, split {record['split']}" if record else removed,
        "stands_for_it": f"{canonical['name']} {canonical['id']}" if canonical else None,
        "row": facts["row"],
        "also_named": [other["name"] for other in facts["other_names"]],
    }
    yield FolderLink("record", name or "(none)", about)
    content: Json = {}
    if code is not None:
        content = {"lines": lines_text(1, max(1, len(code.splitlines()))), "swhid": content_swhid(code.encode())}
    tables = [item for item in manifest.inputs if item.name.endswith(_EXTRACTED)]
    others = [item for item in manifest.inputs if item not in tables]
    if tables and name.startswith(_BLOCK):
        yield from (FolderLink("input", item.name, {"sha256": item.sha256}) for item in tables)
        yield FolderLink("block", name.removeprefix(_BLOCK), content)
        return
    licence = manifest.details.get("license") or manifest.details.get("chat", {}).get("license")
    released = bool(others) and all(item.name.startswith("nn_dataset-") for item in others)
    for item in others:
        yield FolderLink("release" if released else "input", item.name, {"sha256": item.sha256, "license": licence})
    location = f"{_CODES}/{name}.py" if released else f"row {facts['row']:,} of {manifest.parameters.get('source')}"
    yield FolderLink("source", location, content)


# --- finding the network ------------------------------------------------------------------------------------------


def _find(snapshot: SnapshotTables, wanted: str) -> list[Decision]:
    """Return the rows of the requested network (by name) or code (by id), in input order."""
    named = snapshot.select_rows("nn", wanted)
    if named:
        rows_of: dict[str, list[Decision]] = {}
        for row in named:
            if row.id is not None:
                rows_of.setdefault(row.id, []).append(row)
        if len(rows_of) > 1:
            outcomes = {id_: _find_representative(rows).stage for id_, rows in sorted(rows_of.items())}
            entries = [f"{id_[:16]} ({describe_outcome(stage)})" for id_, stage in outcomes.items()]
            raise MissingNameError(
                f"{wanted!r} is the name of {len(rows_of)} codes: {_shorten_list(entries)}; give an id"
            )
        return next(iter(rows_of.values()), named)
    digits = wanted.lower()
    if re.fullmatch(rf"[0-9a-f]{{{MIN_ID_DIGITS},64}}", digits):
        rows = snapshot.rows(pc.starts_with(snapshot.decisions["id"], digits))
        names = {row.id or "": row.nn for row in reversed(rows)}
        if len(names) > 1:
            entries = [f"{digest[:16]} ({names[digest]})" for digest in sorted(names)]
            raise MissingNameError(f"{wanted!r} begins {len(names)} ids: {_shorten_list(entries)}; give more digits")
        if rows:
            return rows
    near = near_names(wanted, pc.unique(snapshot.decisions["nn"]).to_pylist())
    hint = f"near names: {', '.join(near)}" if near else "decisions.parquet lists all, `lemur list` the kept"
    raise MissingNameError(
        f"{wanted!r}: no network of this snapshot has this name, and no id of {MIN_ID_DIGITS} or more digits begins so;"
        f" {hint}"
    )


def _shorten_list(entries: Sequence[str]) -> str:
    more = len(entries) - SHOWN
    return ", ".join(entries[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _find_representative(rows: Sequence[Decision]) -> Decision:
    """Return the representative row of a network."""
    return min(rows, key=lambda row: (_OUTCOME_PRIORITY.index(row.stage), row.row))


# --- collecting the facts -----------------------------------------------------------------------------------------


def _gather(snapshot: SnapshotTables, rows: Sequence[Decision]) -> tuple[Json, LemurRecord | None]:
    row = _find_representative(rows)
    digest, name = row.id, row.nn
    of_code = rows if digest is None else snapshot.select_rows("id", digest)
    unusable = [other for other in snapshot.select_rows("nn", name) if other.id is None and other.row != row.row]
    record = snapshot.find(digest, LemurRecord, ["records"], _RECORD_COLUMNS) if row.kept else None
    graph = snapshot.graph(digest)
    others = sorted({other.nn for other in of_code} - {name}) if digest is not None else []
    named = [_find_representative([one for one in of_code if one.nn == other]) for other in others]
    columns = ("id", "kind", "place", "device", "valid", "duration")
    measured = SNAPSHOT.rows(snapshot.folder, Measurement, columns, ids={digest}) if digest is not None else ()
    facts: Json = {
        "name": name,
        **row.model_dump(include={"id", "kept", "stage", "rescued", "reason", "row"}),
        "further_rows": sum(other.nn == name for other in of_code) - 1 if digest is not None else 0,
        "unusable_rows": [{"row": other.row, "reason": other.reason} for other in unusable],
        "other_names": [{"name": one.nn, "kept": one.kept, "stage": one.stage, "reason": one.reason} for one in named],
        **dict.fromkeys(("canonical", "similarity", "threshold", "score", "diff", "graph_difference")),
        "record": record and record.model_dump(exclude_unset=True),
        "stands_for": _list_duplicates(snapshot, row) if row.kept else None,
        "graph": graph and graph.model_dump(exclude_unset=True),
        "measurements": [one.model_dump(exclude_unset=True) for one in measured],
    }
    if row.kept or row.canonical is None or digest is None:
        return facts, record
    canonical = _describe_canonical(snapshot, row.canonical)
    removed = find_row([snapshot.folder / "networks.parquet"], NetworkRow, digest, ("score",))  # also if it is missing
    facts |= {
        "canonical": canonical,
        "similarity": row.similarity,
        "threshold": snapshot.manifest.parameters.get(f"{row.stage}_threshold"),
        "score": removed and removed.score,
    }
    if canonical["id"] != digest:
        facts["diff"] = _difference(snapshot, (canonical["name"], canonical["id"]), (name, digest))
        facts["graph_difference"] = _graph_difference(snapshot.graph(canonical["id"]), graph)
    return facts, record


def _graph_difference(kept: GraphRow | None, removed: GraphRow | None) -> Json | None:
    """Compare the graphs of two codes; None if one has none."""
    if kept is None or removed is None or kept.graph is None or removed.graph is None:
        return None
    pairs = [
        (Graph.from_json(json.loads(before)), Graph.from_json(json.loads(after)))
        for before, after in ((kept.eval, removed.eval), (kept.train, removed.train))
        if before is not None and after is not None
    ]
    return {
        "agreement": GraphTrace(kept.model_dump()).agrees(GraphTrace(removed.model_dump())),
        "share": share(*pairs[0]),  # of subtrees that both have
        "starts_alike": kept.initial == removed.initial,  # equal initialization of parameters
        "trains_alike": kept.glue == removed.glue,  # equal train_setup and learn
        "differences": list(dict.fromkeys(line for pair in pairs for line in differences(*pair))),
    }


def _describe_canonical(snapshot: SnapshotTables, digest: str) -> Json:
    """Describe the canonical record of a removed one."""
    if (record := snapshot.find(digest, LemurRecord, ["records"], ("nn", "split", "score"))) is not None:
        return {"id": digest, "name": record.nn, "kept": True, "split": record.split, "score": record.score}
    rows = snapshot.select_rows("id", digest)
    name = _find_representative(rows).nn if rows else None
    return {"id": digest, "name": name, "kept": False, "split": None, "score": None}


def _list_duplicates(snapshot: SnapshotTables, kept: Decision) -> Json:
    """Return the duplicates of a kept record: how many by stage, the nearest and the least similar ones."""
    decisions = snapshot.decisions
    is_duplicate = pc.and_(
        pc.equal(decisions["canonical"], kept.id), pc.is_in(decisions["stage"], pa.array(DUPLICATE_STAGES))
    )
    networks: dict[tuple[str, str | None], list[Decision]] = {}
    for row in snapshot.rows(is_duplicate):
        networks.setdefault((row.nn, row.id), []).append(row)
    rows = list(map(_find_representative, networks.values()))
    rows.sort(key=lambda row: (-(row.similarity or 0), DUPLICATE_STAGES.index(row.stage or ""), row.nn, row.id))
    entries = [{"name": row.nn, "id": row.id, "stage": row.stage, "similarity": row.similarity} for row in rows]
    by_stage: Counter[str | None] = Counter(row.stage for row in rows)
    return {
        "networks": len(rows),
        "by_stage": {stage: by_stage[stage] for stage in DUPLICATE_STAGES},
        "nearest": entries[:SHOWN],
        "least_similar": entries[SHOWN:][-SHOWN:],
    }


def _difference(
    snapshot: SnapshotTables, canonical: tuple[str | None, str], removed: tuple[str, str]
) -> list[str] | None:
    """Return the unified difference from the canonical's code to the removed one's; None if a code is missing."""
    old, new = snapshot.code(canonical[1]), snapshot.code(removed[1])
    if old is None or new is None:
        return None
    before, after = (f"{name} {digest[:16]}" for name, digest in (canonical, removed))
    return list(difflib.unified_diff(_split_code(old), _split_code(new), before, after, lineterm=""))


def _split_code(code: str) -> list[str]:
    """Split into lines as an editor shows them, marking what it would not show: a missing newline at the end."""
    lines = code.split("\n")
    if lines[-1] == "":
        lines.pop()
    elif lines:
        lines[-1] += "  [no newline at the end]"
    return lines
