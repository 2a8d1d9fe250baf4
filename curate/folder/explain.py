"""What a snapshot knows about one network: why it was kept or removed, and where it is from.

All rows with one name and one code are one network. A code may have several names, so the two are looked up
separately: an id selects a code, a name selects a network.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.compute.graphs import GraphTrace
from curate.compute.outcome import AGREEMENTS, DUPLICATE_STAGES
from lemur_core.describe.picture import check_picture, draw
from lemur_core.files import Json
from lemur_core.files.errors import MissingNameError, UserError, near_names
from lemur_core.files.markdown import make_visible, plural, ratio
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import differences, share
from manifests.folders.kinds import SNAPSHOT, FolderLink, FoundItem, lines_text, list_fields
from manifests.folders.tables import R, as_records, read_rows, read_table
from manifests.provenance import REQUIREMENTS, TABLE
from manifests.provenance.swhid import content_swhid
from manifests.records import Decision, GraphRow, LemurRecord, Measurement, NetworkRow

#: Maximum number of entries shown from each list.
SHOWN = 5
#: Hexadecimal digits that an abbreviated id must have.
MIN_ID_DIGITS = 6
#: The fields of a record that are shown, besides its name and id.
RECORD_FIELDS = (
    *("prefix", "family", "split", "cluster", "score", "task", "dataset", "metric", "accuracy", "epoch"),
    *("best_accuracy", "best_epoch", "weight", "pretrained", "runs", "runs_error", "dead_classes"),
    *("unused_parameters", "license", "origin", "origin_similarity", "origin_license"),
)
#: Outcomes by priority: the first row with the best of these is the representative of a network.
_OUTCOME_PRIORITY = (None, "lexical", "structural", "graph", "exact", "filter", "leak", "invalid", "repeat")
#: Where the codes are in a wheel of nn-dataset, one file per network; must match `curate.sources.lemur`.
_CODES = "ab/nn/nn"
#: The files read from an extraction folder, and the names of its rows; must match `curate.sources.folders`.
_EXTRACTED, _BLOCK = (f"/{TABLE}", f"/{REQUIREMENTS}"), "block-"


class _Snapshot:
    """The tables of a snapshot folder; code is read for single ids only. Raises: UserError if it is no snapshot."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, SNAPSHOT.open(folder)
        columns = [name for name in Decision.model_fields if name != "agreement"]
        self.decisions = read_table([folder / "decisions.parquet"], Decision, columns).combine_chunks()

    def rows(self, mask: pa.Array | pa.ChunkedArray) -> list[Decision]:
        """Return the decisions selected by a mask, in input order."""
        return as_records(self.decisions.filter(mask), Decision)

    def select(self, column: str, value: str) -> list[Decision]:
        """Return the decisions on all rows with this name (`nn`) or code (`id`)."""
        return self.rows(pc.equal(self.decisions[column], value))

    def find(self, id_: str | None, record: type[R], columns: Sequence[str] = ()) -> R | None:
        """Return the row of a code in the table of a record type."""
        return None if id_ is None else next(SNAPSHOT.rows(self.folder, record, columns, ids={id_}), None)

    def code(self, id_: str | None) -> str | None:
        """Return the code of an id, kept or removed."""
        row = self.find(id_, LemurRecord, ("nn_code",)) or self.find(id_, NetworkRow, ("nn_code",))
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
        snapshot = _Snapshot(folder)
        rows = _find(snapshot, name_or_id)
        record, facts = _gather(snapshot, rows)
        code = snapshot.code(facts["id"])
    lines = [f"{label:<11} {text}" for label, text in _list_entries(facts, record)]
    if facts["diff"] is not None:
        lines += ["", *(facts["diff"] or ["the codes have equal lines"])]
    return FoundItem(
        tuple(_list_links(snapshot, facts, code)),
        () if facts["id"] is None else (facts["id"],),
        [make_visible(line) for line in lines],
        facts,
        draw=partial(draw_graph, facts),
    )


# --- finding the network ------------------------------------------------------------------------------------------


def _find(snapshot: _Snapshot, wanted: str) -> list[Decision]:
    """Return the rows of the requested network (by name) or code (by id), in input order."""
    if named := snapshot.select("nn", wanted):
        by_id = _group(named, lambda row: row.id)
        if len(by_id) > 1:
            entries = [f"{id_[:16]} ({_outcome(_speaker(rows).stage)})" for id_, rows in sorted(by_id.items())]
            raise MissingNameError(f"{wanted!r} is the name of {len(by_id)} codes: {_shorten(entries)}; give an id")
        return next(iter(by_id.values()), named)
    digits = wanted.lower()
    if re.fullmatch(rf"[0-9a-f]{{{MIN_ID_DIGITS},64}}", digits):
        rows = snapshot.rows(pc.starts_with(snapshot.decisions["id"], digits))
        by_id = _group(rows, lambda row: row.id)
        if len(by_id) > 1:
            entries = [f"{id_[:16]} ({by_id[id_][0].nn})" for id_ in sorted(by_id)]
            raise MissingNameError(f"{wanted!r} begins {len(by_id)} ids: {_shorten(entries)}; give more digits")
        if rows:
            return rows
    near = near_names(wanted, pc.unique(snapshot.decisions["nn"]).to_pylist())
    hint = f"near names: {', '.join(near)}" if near else "decisions.parquet lists all, `lemur list` the kept"
    raise MissingNameError(
        f"{wanted!r}: no network of this snapshot has this name, and no id of {MIN_ID_DIGITS} or more digits begins so;"
        f" {hint}"
    )


def _shorten(entries: Sequence[str]) -> str:
    more = len(entries) - SHOWN
    return ", ".join(entries[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _group(rows: Iterable[Decision], key: Callable[[Decision], Any]) -> dict[Any, list[Decision]]:
    groups: dict[Any, list[Decision]] = {}
    for row in rows:
        if row.id is not None:
            groups.setdefault(key(row), []).append(row)
    return groups


def _speaker(rows: Iterable[Decision]) -> Decision:
    """Return the row that speaks for a network."""
    return min(rows, key=lambda row: (_OUTCOME_PRIORITY.index(row.stage), row.row))


# --- collecting the facts -----------------------------------------------------------------------------------------


def _gather(snapshot: _Snapshot, rows: Sequence[Decision]) -> tuple[LemurRecord | None, Json]:
    """Return the record of a kept network, and all facts."""
    row = _speaker(rows)
    id_, name = row.id, row.nn
    by_name = _group([] if id_ is None else snapshot.select("id", id_), lambda other: other.nn)
    others = [_speaker(by_name[other]) for other in sorted(by_name.keys() - {name})]
    record = snapshot.find(id_, LemurRecord, ("nn", *RECORD_FIELDS)) if row.kept else None
    graph = snapshot.find(id_, GraphRow)
    columns = ("id", "kind", "place", "device", "valid", "duration")
    measured = SNAPSHOT.rows(snapshot.folder, Measurement, columns, ids={id_}) if id_ is not None else ()
    unusable = [other for other in snapshot.select("nn", name) if other.id is None and other.row != row.row]
    facts: Json = {
        "name": name,
        **row.model_dump(include={"id", "kept", "stage", "rescued", "reason", "row"}),
        "further_rows": max(len(by_name.get(name, ())) - 1, 0),
        "unusable_rows": [other.model_dump(include={"row", "reason"}) for other in unusable],
        "other_names": [{"name": one.nn, **one.model_dump(include={"kept", "stage", "reason"})} for one in others],
        **dict.fromkeys(("canonical", "similarity", "threshold", "score", "diff", "graph_difference")),
        "record": record and record.model_dump(exclude_unset=True),
        "stands_for": _list_duplicates(snapshot, row) if row.kept else None,
        "graph": graph and graph.model_dump(exclude_unset=True),
        "measurements": [one.model_dump(exclude_unset=True) for one in measured],
    }
    if row.kept or row.canonical is None or id_ is None:
        return record, facts
    witness = snapshot.find(row.canonical, LemurRecord, ("nn", "split", "score"))
    decided = snapshot.select("id", row.canonical)
    networks = [snapshot.folder / "networks.parquet"]  # also if it is missing
    network = next(read_rows(networks, NetworkRow, ("score",), ids={id_}), None)
    canonical = {
        "id": row.canonical,
        "name": witness.nn if witness else _speaker(decided).nn if decided else None,
        "kept": witness is not None,
        "split": witness and witness.split,
        "score": witness and witness.score,
    }
    facts |= {"canonical": canonical, "similarity": row.similarity, "score": network and network.score}
    facts["threshold"] = snapshot.manifest.parameters.get(f"{row.stage}_threshold")
    if row.canonical != id_:
        old, new = snapshot.code(row.canonical), snapshot.code(id_)
        heads = f"{canonical['name']} {row.canonical[:16]}", f"{name} {id_[:16]}"
        if old is not None and new is not None:
            facts["diff"] = list(difflib.unified_diff(_split_code(old), _split_code(new), *heads, lineterm=""))
        facts["graph_difference"] = _compare_graphs(snapshot.find(row.canonical, GraphRow), graph)
    return record, facts


def _compare_graphs(kept: GraphRow | None, removed: GraphRow | None) -> Json | None:
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


def _list_duplicates(snapshot: _Snapshot, kept: Decision) -> Json:
    """Return the duplicates of a kept record: how many by stage, the nearest and the least similar ones."""
    of_it = pc.equal(snapshot.decisions["canonical"], kept.id)
    removed = pc.is_in(snapshot.decisions["stage"], pa.array(DUPLICATE_STAGES))
    networks = _group(snapshot.rows(pc.and_(of_it, removed)), lambda row: (row.nn, row.id))
    rows = list(map(_speaker, networks.values()))
    rows.sort(key=lambda row: (-(row.similarity or 0), DUPLICATE_STAGES.index(row.stage or ""), row.nn, row.id))
    entries = [{"name": row.nn, **row.model_dump(include={"id", "stage", "similarity"})} for row in rows]
    by_stage = Counter[str | None](row.stage for row in rows)
    return {
        "networks": len(rows),
        "by_stage": {stage: by_stage[stage] for stage in DUPLICATE_STAGES},
        "nearest": entries[:SHOWN],
        "least_similar": entries[SHOWN:][-SHOWN:],
    }


def _split_code(code: str) -> list[str]:
    """Split into lines as an editor shows them, marking what it would not show: a missing newline at the end."""
    lines = code.split("\n")
    if lines[-1] == "":
        lines.pop()
    elif lines:
        lines[-1] += "  [no newline at the end]"
    return lines


# --- in print -----------------------------------------------------------------------------------------------------


def _outcome(stage: str | None) -> str:
    return "kept" if stage is None else f"removed at stage {stage}"


def _list_entries(facts: Json, record: LemurRecord | None) -> Iterator[tuple[str, str]]:
    """Yield labels, and the text behind them; without a label, a further line of the entry above."""
    yield "name", facts["name"] or "(none)"
    yield "id", facts["id"] or "none: the row has no usable code"
    causes = {
        "prefix": " (for the support of its prefix)",
        "topup": " (as a top-up of its prefix)",
        "invalid": ": it cannot be used",
        "filter": ": an option of the run left it out",
    }
    yield "outcome", _outcome(facts["stage"]) + causes.get(facts["rescued"] or facts["stage"] or "", "")
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
        yield from list_fields(record, RECORD_FIELDS)
    yield from _list_graph(facts["graph"], facts["graph_difference"])
    for measured in facts["measurements"][:SHOWN]:
        result = {None: "", True: ", valid", False: ", failed"}[measured["valid"]]
        duration = "" if measured["duration"] is None else f", duration {measured['duration']:,g}"
        yield "measured", f"{measured['kind']}: {measured['device'] or measured['place']}{result}{duration}"
    further = facts["further_rows"]
    yield "row", f"{facts['row']:,}" + (f", and {plural(further, 'further row')} of this network" if further else "")
    unusable = [f"row {other['row']:,} of this name: {other['reason']}" for other in facts["unusable_rows"]]
    yield from (("unusable", text) for text in unusable[:SHOWN])
    if len(unusable) > SHOWN:
        yield "", f"and {len(unusable) - SHOWN:,} more"
    for other in facts["other_names"]:
        yield "also named", f"{other['name']}: {_outcome(other['stage'])}"
    yield from _list_represented(facts["stands_for"])


def _list_graph(row: Json | None, difference: Json | None) -> Iterator[tuple[str, str]]:
    if row is not None:
        yield "graph", row["graph"] or f"none: {row['error'] or ''}"
        if row["dead_classes"]:
            yield "", f"never runs: {', '.join(row['dead_classes'])}"
    if difference is not None:
        agreement = difference["agreement"]
        parts = [part for part, key in (("start", "starts_alike"), ("train", "trains_alike")) if not difference[key]]
        also = f", but {' and '.join(parts)} differently" if parts and agreement == "same" else ""
        common = f"; {difference['share']:.0%} of their subtrees in common" if agreement == "different" else ""
        yield "computation", AGREEMENTS[agreement] + also + common
        yield from (("", line) for line in difference["differences"])


def _list_represented(stands_for: Json | None) -> Iterator[tuple[str, str]]:
    if stands_for is None:
        return
    if not (total := stands_for["networks"]):
        yield "stands for", "itself alone"
        return
    parts = [f"{count:,} {stage}" for stage, count in stands_for["by_stage"].items() if count]
    yield "stands for", f"{plural(total, 'removed network')}: {', '.join(parts)}"
    nearest, least_similar = stands_for["nearest"], stands_for["least_similar"]
    for label, entries in (("  nearest" if least_similar else "  these are", nearest), ("  farthest", least_similar)):
        for number, entry in enumerate(entries):
            text = f"{ratio(entry['similarity'])} {entry['stage']:<11}{entry['name']}  {entry['id'][:16]}"
            yield "" if number else label, text


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


def _list_links(snapshot: _Snapshot, facts: Json, code: str | None) -> Iterator[FolderLink]:
    """Yield the network, and where its row was read, as far as the manifest and its name say: the input, the place."""
    manifest, name, record, canonical = snapshot.manifest, facts["name"], facts["record"], facts["canonical"]
    about = {
        "id": facts["id"],
        "outcome": f"kept, split {record['split']}" if record else f"{_outcome(facts['stage'])}: {facts['reason']}",
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
    license_ = manifest.details.get("license")
    released = bool(others) and all(item.name.startswith("nn_dataset-") for item in others)
    for item in others:
        yield FolderLink("release" if released else "input", item.name, {"sha256": item.sha256, "license": license_})
    location = f"{_CODES}/{name}.py" if released else f"row {facts['row']:,} of {manifest.parameters.get('source')}"
    yield FolderLink("source", location, content)
