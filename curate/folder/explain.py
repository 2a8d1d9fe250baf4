"""What a snapshot knows about one network: why it was kept or removed, and where it is from.

All rows with one name and one code are one network. A code may have several names, so the two are looked up
separately: an id selects a code, a name selects a network.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from curate.compute.outcome import AGREEMENTS, DUPLICATE_STAGES
from lemur_core.describe.picture import check_picture, draw
from lemur_core.files import Json
from lemur_core.files.errors import MissingNameError, UserError, near_names
from lemur_core.files.markdown import make_visible, plural, ratio
from lemur_core.graphs.graph import Graph
from manifests.folders.kinds import SNAPSHOT, FolderLink, FoundItem, lines_text, list_fields
from manifests.folders.manifest import Manifest
from manifests.folders.tables import as_records, read_rows, read_table
from manifests.provenance import REQUIREMENTS, TABLE
from manifests.provenance.swhid import content_swhid
from manifests.records import Decision, GraphRow, LemurRecord, NetworkRow

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
#: Outcomes by priority: the first row with the best of these speaks for a network.
_OUTCOME_PRIORITY = (None, "lexical", "structural", "graph", "exact", "filter", "leak", "invalid", "repeat")
#: Where the codes are in a wheel of nn-dataset, one file per network; must match `curate.sources.lemur`.
_CODES = "ab/nn/nn"
#: The files read from an extraction folder, and the names of its rows; must match `curate.sources.folders`.
_EXTRACTED, _BLOCK = (f"/{TABLE}", f"/{REQUIREMENTS}"), "block-"


def explain(folder: Path, name_or_id: str) -> FoundItem:
    """Explain what a snapshot decided about one network.

    Facts: `name`, `id`, `kept`, `stage`, `rescued`, `reason`, `row`; `other_names` of the code; of a removed duplicate
    `canonical`, `similarity`, `threshold`, `score` and, if that is another code, `diff` and `agreement` of the graphs;
    of a kept network `record` without its code, and `stands_for`; `graph`.

    Args: name_or_id: an exact name, an id, or the first six or more digits of one.
    Raises: UserError if the folder is not a snapshot, or no or several networks match.
    """
    manifest = SNAPSHOT.open(folder)
    with SNAPSHOT.reading(folder):
        decisions = read_table([folder / "decisions.parquet"], Decision).combine_chunks()
        row = _find(decisions, name_or_id)
        record, facts, code = _gather(folder, manifest, decisions, row)
    lines = [f"{label:<11} {text}" for label, text in _list_entries(facts, record)]
    if facts["diff"] is not None:
        lines += ["", *(facts["diff"] or ["the codes have equal lines"])]
    return FoundItem(
        tuple(_list_links(manifest, facts, code)),
        () if row.id is None else (row.id,),
        [make_visible(line) for line in lines],
        facts,
        draw=partial(draw_graph, facts),
    )


def _select(decisions: pa.Table, mask: pa.Array) -> list[Decision]:
    return as_records(decisions.filter(mask), Decision)


def _speaker(rows: Iterable[Decision]) -> Decision:
    """Return the row that speaks for a network."""
    return min(rows, key=lambda row: (_OUTCOME_PRIORITY.index(row.stage), row.row))


def _find(decisions: pa.Table, wanted: str) -> Decision:
    """Return the row that speaks for the requested network (by name) or code (by id)."""
    digits = wanted.lower()
    named = _select(decisions, pc.equal(decisions["nn"], wanted))
    what, ask = f"{wanted!r} is the name of", "an id"
    if not named and re.fullmatch(rf"[0-9a-f]{{{MIN_ID_DIGITS},64}}", digits):
        named = _select(decisions, pc.starts_with(decisions["id"], digits))
        what, ask = f"{wanted!r} begins the ids of", "more digits"
    if not named:
        near = near_names(wanted, pc.unique(decisions["nn"]).to_pylist())
        hint = f"near names: {', '.join(near)}" if near else "decisions.parquet lists all, `lemur list` the kept"
        raise MissingNameError(
            f"{wanted!r}: no network of this snapshot has this name, and no id of {MIN_ID_DIGITS} or more digits begins"
            f" so; {hint}"
        )
    by_id = {id_: [row for row in named if row.id == id_] for id_ in sorted({row.id for row in named if row.id})}
    if len(by_id) > 1:
        speakers = list(map(_speaker, by_id.values()))
        entries = [f"{(row.id or '')[:16]} {row.nn} ({_outcome(row.stage)})" for row in speakers[:SHOWN]]
        more = f" and {len(by_id) - SHOWN} more" if len(by_id) > SHOWN else ""
        raise MissingNameError(f"{what} {len(by_id)} codes: {', '.join(entries)}{more}; give {ask}")
    return _speaker(next(iter(by_id.values()), named))


def _gather(
    folder: Path, manifest: Manifest, decisions: pa.Table, row: Decision
) -> tuple[LemurRecord | None, Json, str | None]:
    """Return the record of a kept network, all facts, and its code."""
    id_, ids = row.id, {row.id or "", row.canonical or ""}
    records = {one.id: one for one in SNAPSHOT.rows(folder, LemurRecord, ("id", "nn", *RECORD_FIELDS), ids=ids)}
    networks = [folder / "networks.parquet"]  # also if it is missing
    codes = {one.id: one for one in read_rows(networks, NetworkRow, ("id", "nn_code", "score"), ids=ids)}
    graph = None if id_ is None else next(SNAPSHOT.rows(folder, GraphRow, ids={id_}), None)
    same = sorted(_select(decisions, pc.equal(decisions["id"], id_)), key=attrgetter("nn")) if id_ is not None else []
    others = [_speaker(rows) for nn, rows in groupby(same, key=attrgetter("nn")) if nn != row.nn]
    record = records.get(id_ or "") if row.kept else None
    facts: Json = {
        "name": row.nn,
        **row.model_dump(include={"id", "kept", "stage", "rescued", "reason", "row"}),
        "other_names": [{"name": one.nn, **one.model_dump(include={"kept", "stage", "reason"})} for one in others],
        **dict.fromkeys(("canonical", "similarity", "threshold", "score", "diff", "agreement")),
        "record": record and record.model_dump(exclude_unset=True),
        "stands_for": _list_duplicates(decisions, row) if row.kept else None,
        "graph": graph and graph.model_dump(exclude_unset=True),
    }
    code = codes[id_].nn_code if id_ in codes else None
    if row.kept or row.canonical is None or id_ is None:
        return record, facts, code
    witness = records.get(row.canonical)
    facts |= {
        "canonical": {
            "id": row.canonical,
            "name": witness and witness.nn,
            "kept": witness is not None,
            "split": witness and witness.split,
            "score": witness and witness.score,
        },
        "similarity": row.similarity,
        "threshold": manifest.parameters.get(f"{row.stage}_threshold"),
        "score": codes[id_].score if id_ in codes else None,
    }
    if row.canonical != id_:
        old = codes[row.canonical].nn_code if row.canonical in codes else None
        if old and code:
            heads = f"{facts['canonical']['name']} {row.canonical[:16]}", f"{row.nn} {id_[:16]}"
            facts["diff"] = list(difflib.unified_diff(_split_code(old), _split_code(code), *heads, lineterm=""))
        facts["agreement"] = row.agreement
    return record, facts, code


def _list_duplicates(decisions: pa.Table, kept: Decision) -> Json:
    """Return the networks that a kept record stands for: how many by stage, and the nearest ones."""
    removed = pc.is_in(decisions["stage"], pa.array(DUPLICATE_STAGES))
    rows = _select(decisions, pc.and_(pc.equal(decisions["canonical"], kept.id), removed))
    rows.sort(key=lambda row: (-(row.similarity or 0), DUPLICATE_STAGES.index(row.stage or ""), row.nn, row.id))
    by_stage = Counter[str | None](row.stage for row in rows)
    return {
        "networks": len(rows),
        "by_stage": {stage: by_stage[stage] for stage in DUPLICATE_STAGES},
        "nearest": [{"name": row.nn, **row.model_dump(include={"id", "stage", "similarity"})} for row in rows[:SHOWN]],
    }


def _split_code(code: str) -> list[str]:
    """Split into lines as an editor shows them, marking what it would not show: a missing newline at the end."""
    lines = code.split("\n")
    return lines[:-1] if lines[-1] == "" else [*lines[:-1], f"{lines[-1]}  [no newline at the end]"]


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
    if (graph := facts["graph"]) is not None:
        yield "graph", graph["graph"] or f"none: {graph['error'] or ''}"
        if graph["dead_classes"]:
            yield "", f"never runs: {', '.join(graph['dead_classes'])}"
    if facts["agreement"] is not None:
        yield "computation", AGREEMENTS[facts["agreement"]]
    yield "row", f"{facts['row']:,}"
    for other in facts["other_names"]:
        yield "also named", f"{other['name']}: {_outcome(other['stage'])}"
    if (represented := facts["stands_for"]) is not None:
        stages = ", ".join(f"{count:,} {stage}" for stage, count in represented["by_stage"].items() if count)
        total = represented["networks"]
        yield "stands for", f"{plural(total, 'removed network')}: {stages}" if total else "itself alone"
        for number, entry in enumerate(represented["nearest"]):
            text = f"{ratio(entry['similarity'])} {entry['stage']:<11}{entry['name']}  {entry['id'][:16]}"
            yield "" if number else "  nearest", text


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


def _list_links(manifest: Manifest, facts: Json, code: str | None) -> Iterator[FolderLink]:
    """Yield the network, and where its row was read, as far as the manifest and its name say: the input, the place."""
    name, record, canonical = facts["name"], facts["record"], facts["canonical"]
    about = {
        "id": facts["id"],
        "outcome": f"kept, split {record['split']}" if record else f"{_outcome(facts['stage'])}: {facts['reason']}",
        "stands_for_it": f"{canonical['name']} {canonical['id']}" if canonical else None,
        "row": facts["row"],
        "also_named": [other["name"] for other in facts["other_names"]],
    }
    yield FolderLink("record", name or "(none)", about)
    content: Json = {}
    if code:  # it is empty where it was withheld from publishing
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
