"""`lemur explain`: why one record was kept or removed, told from the finished snapshot folder alone.

All rows of one name and one code are one network. A code may bear several names, so the two are looked up apart: an id
asks about a code, a name asks about that network.
"""

import contextlib
import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.published.delta_check import record_files
from curate.published.outcome import DUPLICATE_STAGES
from curate.published.published import find_parents
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article, plural, ratio, shown
from lemur_core.graphs.compare import differences, share
from lemur_core.graphs.graph import Graph
from manifests.folders.manifest import read_manifest
from manifests.records import GraphRow

#: Hexadecimal digits that an abbreviated id must have.
MIN_ID_DIGITS = 6

_SHOWN = 5  # entries of each list
_BENCHMARK = ("task", "dataset", "metric", "epoch", "accuracy")
_RECORD_COLUMNS = (
    "nn",
    *_BENCHMARK,
    "family",
    "split",
    "weight",
    "cluster",
    "score",
    "pretrained",
    "runs",
    "runs_error",
    "license",
    "origin",
    "origin_similarity",
    "origin_license",
)
_DECISION_COLUMNS = ("row", "id", "nn", "kept", "stage", "rescued", "canonical", "similarity", "reason")
#: Which row of a network speaks for it: the first of the first of these outcomes that it has.
_SPEAKS_FIRST = ("kept", "lexical", "structural", "graph", "leak", "exact", "filter", "invalid", "repeat")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one record was kept or removed: `lines` to print as they are, `facts` for JSON."""

    lines: list[str]
    facts: dict[str, Any]


def explain(folder: Path, name_or_id: str, against: Sequence[Path] = (), *, partial: bool = False) -> Explanation:
    """What a snapshot's decisions say about one network.

    Args:
        folder: a snapshot folder.
        name_or_id: an exact name, an id, or the first six or more digits of one.
        against: what a delta was made against, where it does not lie beside it under its name.
        partial: do without what is not found of that.

    Returns: the whole story, with the difference between the two codes when one stands for the other.
    Raises: UserError if the folder is no snapshot, a delta's parent is not found, or nothing or several things are
        called so.
    """
    with read_errors(folder):
        snapshot = Snapshot(folder)
        parents = find_parents(folder, snapshot.manifest, against, partial=partial)
        snapshot.parents = [Snapshot(parent) for parent in parents]
        return _explain(snapshot, name_or_id)


@contextlib.contextmanager
def read_errors(folder: Path) -> Iterator[None]:
    """Failures to read a snapshot, as one line.

    Raises: UserError instead of what Arrow or the system raised.
    """
    try:
        yield
    except (OSError, KeyError, pa.ArrowException) as error:
        detail = str(error).splitlines()[0]
        raise UserError(f"{folder}: damaged snapshot: {detail}; run `lemur verify`, or make the folder anew") from error


class Snapshot:
    """The tables of a snapshot folder; code is read for single ids only.

    Attributes: parents: of a delta: what it was made against; records, graphs and codes are looked for there too.

    Raises: UserError if the folder is no snapshot.
    """

    def __init__(self, folder: Path) -> None:
        self.parents: Sequence[Snapshot] = ()
        self.manifest = read_manifest(folder)
        if self.manifest.kind != "snapshot":
            what = article(self.manifest.kind)
            raise UserError(f"{folder}: holds {what}, not a snapshot; give the folder that `lemur curate` wrote")
        table = pq.read_table(folder / "decisions.parquet", columns=list(_DECISION_COLUMNS), memory_map=True)
        self.decisions = table.combine_chunks()
        self.folder = folder

    def rows(self, mask: pa.Array | pa.ChunkedArray) -> list[dict[str, Any]]:
        """The decisions that a mask chooses, in input order."""
        found: list[dict[str, Any]] = self.decisions.filter(mask).to_pylist()
        return found

    def rows_of(self, column: str, value: str) -> list[dict[str, Any]]:
        """The decisions of all rows with this name (`nn`) or code (`id`)."""
        return self.rows(pc.equal(self.decisions[column], value))

    def record(self, digest: str) -> dict[str, Any] | None:
        """The kept record of an id, without its code."""
        own = next((row for path in self._record_files() for row in _rows_of(path, digest, _RECORD_COLUMNS)), None)
        return own or self._published("record", digest)

    def graph(self, digest: str | None) -> dict[str, Any] | None:
        """What a code computes, or why that is not known; None where it was not traced."""
        path = self.folder / "graphs.parquet"
        if digest is None or not path.exists():
            return None
        own = next(iter(_rows_of(path, digest, tuple(GraphRow.model_fields))), None)
        return own or self._published("graph", digest)

    def code(self, digest: str) -> str | None:
        """The code of an id, kept or removed."""
        files = [*self._record_files(), self.folder / "removed.parquet"]
        own = next((row["nn_code"] for path in files for row in _rows_of(path, digest, ("nn_code",))), None)
        found: str | None = own or self._published("code", digest)
        return found

    def folder_of(self, digest: str) -> str | None:
        """The folder of a published record, of a delta's parents."""
        return next((str(parent.folder) for parent in self.parents if parent.record(digest) is not None), None)

    def removed_score(self, digest: str) -> float | None:
        """The score of a removed code, where it has one."""
        found = _rows_of(self.folder / "removed.parquet", digest, ("score",))
        return found[0]["score"] if found else None

    def threshold(self, stage: str | None) -> float | None:
        """The threshold of a stage that has one."""
        value = self.manifest.parameters.get(f"{stage}_threshold") if stage in ("lexical", "structural") else None
        return None if value is None else float(value)

    def _published(self, what: str, digest: str) -> Any:
        found = (getattr(parent, what)(digest) for parent in self.parents)
        return next((item for item in found if item is not None), None)

    def _record_files(self) -> list[Path]:
        return record_files(self.folder)


def _rows_of(path: Path, digest: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The row of an id in one file, if it is there; only the row group that holds it is read beyond its ids."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            place = pc.index(file.read_row_group(group, columns=["id"])["id"], digest).as_py()
            if place >= 0:
                rows: list[dict[str, Any]] = (
                    file.read_row_group(group, columns=list(columns)).slice(place, 1).to_pylist()
                )
                return rows
    return []


# --- which network is meant ---------------------------------------------------------------------------------------


def _find(snapshot: Snapshot, wanted: str) -> list[dict[str, Any]]:
    """The rows of the one network (by name) or the one code (by id) that is meant, in input order."""
    named = snapshot.rows_of("nn", wanted)
    if named:
        digests = sorted({row["id"] for row in named if row["id"] is not None})
        if len(digests) > 1:
            found = [
                f"{digest[:16]} ({_fate(_speaker([r for r in named if r['id'] == digest]))})" for digest in digests
            ]
            raise UserError(f"{wanted!r} is the name of {len(digests)} codes: {_some(found)}; give an id")
        return [row for row in named if row["id"] == digests[0]] if digests else named
    digits = wanted.lower()
    if re.fullmatch(rf"[0-9a-f]{{{MIN_ID_DIGITS},64}}", digits):
        rows = snapshot.rows(pc.starts_with(snapshot.decisions["id"], digits))
        names = {row["id"]: row["nn"] for row in reversed(rows)}
        if len(names) > 1:
            found = [f"{digest[:16]} ({names[digest]})" for digest in sorted(names)]
            raise UserError(f"{wanted!r} begins {len(names)} ids: {_some(found)}; give more digits")
        if rows:
            return rows
    raise UserError(_unknown(snapshot, wanted))


def _unknown(snapshot: Snapshot, wanted: str) -> str:
    names = sorted(set(pc.unique(snapshot.decisions["nn"]).to_pylist()))
    part = wanted.casefold()
    holding = [name for name in names if part and part in name.casefold()]
    near = sorted(holding, key=lambda name: (name.casefold() != part, not name.casefold().startswith(part), name))[
        :_SHOWN
    ]
    near += [name for name in difflib.get_close_matches(wanted, names, _SHOWN) if name not in near]
    start = (
        f"{wanted!r}: no network of this snapshot has this name, and no id of {MIN_ID_DIGITS} or more digits begins so"
    )
    return f"{start}; near names: {_some(near[:_SHOWN])}" if near else f"{start}; decisions.parquet lists all names"


def _some(found: Sequence[str]) -> str:
    more = len(found) - _SHOWN
    return ", ".join(found[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _speaker(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row that tells what became of a network; the others are its further rows."""
    return min(rows, key=lambda row: (_SPEAKS_FIRST.index(_outcome(row)), row["row"]))


def _outcome(row: dict[str, Any]) -> str:
    return "kept" if row["kept"] else row["stage"]


def _fate(row: dict[str, Any]) -> str:
    return "kept" if row["kept"] else f"removed at stage {row['stage']}"


# --- what became of it --------------------------------------------------------------------------------------------


def draw_graph(explanation: Explanation, path: Path) -> str:
    """Draw what the network of an explanation computes in eval mode. Returns: a line that says so.

    Raises: UserError if that is not known; UsageError if the file is no `.svg`.
    """
    from lemur_core.describe.picture import check_picture, draw

    check_picture(path)
    facts = explanation.facts
    row, name = facts["graph"], f"{facts['name']} {(facts['id'] or '')[:16]}"
    if row is None:
        raise UserError(f"{name}: was not traced, so there is no graph to draw; `lemur curate --graph all` traces all")
    if row["graph"] is None:
        raise UserError(f"{name}: has no graph to draw: {shown(row['error'])}")
    try:
        graph = Graph.from_json(json.loads(row["eval"]))
    except ValueError as error:
        raise UserError(f"{name}: its graph cannot be read: {error}; make the snapshot anew") from error
    return f"{path}: {plural(draw(graph, path, name), 'box', 'boxes')}, what it computes in eval mode"


def _explain(snapshot: Snapshot, wanted: str) -> Explanation:
    rows = _find(snapshot, wanted)
    row = _speaker(rows)
    digest, name = row["id"], row["nn"]
    of_code = rows if digest is None else snapshot.rows_of("id", digest)
    unusable = [other for other in snapshot.rows_of("nn", name) if other["id"] is None and other["row"] != row["row"]]
    facts: dict[str, Any] = {
        "name": name,
        "id": digest,
        "kept": row["kept"],
        "stage": row["stage"],
        "rescued": row["rescued"],
        "reason": row["reason"],
        "row": row["row"],
        "further_rows": sum(other["nn"] == name for other in of_code) - 1 if digest is not None else 0,
        "unusable_rows": [{"row": other["row"], "reason": other["reason"]} for other in unusable],
        "other_names": _other_names(of_code, name),
        "canonical": None,
        "similarity": None,
        "threshold": None,
        "score": None,
        "record": None,
        "stands_for": None,
        "diff": None,
        "graph": snapshot.graph(digest),
    }
    if row["canonical"] is not None and not row["kept"]:
        canonical = _canonical(snapshot, row["canonical"])
        facts["canonical"] = canonical
        facts["similarity"], facts["threshold"] = row["similarity"], snapshot.threshold(row["stage"])
        facts["score"] = snapshot.removed_score(digest)
        if canonical["id"] != digest:
            facts["graph_difference"] = _graph_difference(snapshot, row["canonical"], digest)
            facts["diff"] = _difference(snapshot, (canonical["name"], canonical["id"]), (name, digest))
    elif row["kept"]:
        facts["record"] = snapshot.record(digest)
    if row["kept"]:
        facts["stands_for"] = _stands_for(snapshot, row)
    return Explanation([shown(line) for line in _lines(facts)], facts)


def _graph_difference(snapshot: Snapshot, canonical: str, removed: str) -> dict[str, Any] | None:
    """How what two codes compute differs; None where a graph is not known."""
    one, other = (snapshot.graph(digest) for digest in (canonical, removed))
    if one is None or other is None or one["graph"] is None or other["graph"] is None:
        return None
    pairs = [
        [Graph.from_json(json.loads(row[mode])) for row in (one, other)]
        for mode in ("eval", "train")
        if one[mode] is not None and other[mode] is not None
    ]
    agreement = "widths" if one["graph_widths"] == other["graph_widths"] else "different"
    return {
        "agreement": "same" if one["graph"] == other["graph"] else agreement,
        "share": share(pairs[0][0], pairs[0][1]),
        "starts_alike": one["initial"] == other["initial"],
        "trains_alike": one["glue"] == other["glue"],
        "differences": list(dict.fromkeys(line for pair in pairs for line in differences(pair[0], pair[1]))),
    }


def _canonical(snapshot: Snapshot, digest: str) -> dict[str, Any]:
    """What is told of the record that stands for a removed one."""
    record = snapshot.record(digest)
    if record is not None:
        told = {"id": digest, "name": record["nn"], "kept": True, "split": record["split"], "score": record["score"]}
        return told | ({"folder": folder} if (folder := snapshot.folder_of(digest)) is not None else {})
    rows = snapshot.rows_of("id", digest)  # profile nn-dup may name one that was removed in its turn
    return {"id": digest, "name": _speaker(rows)["nn"] if rows else None, "kept": False, "split": None, "score": None}


def _other_names(of_code: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The further names of the same code and what became of each, by name."""
    if of_code[0]["id"] is None:
        return []
    names = sorted({row["nn"] for row in of_code} - {name})
    speakers = [_speaker([row for row in of_code if row["nn"] == other]) for other in names]
    return [
        {"name": row["nn"], "kept": row["kept"], "stage": row["stage"], "reason": row["reason"]} for row in speakers
    ]


def _stands_for(snapshot: Snapshot, kept: dict[str, Any]) -> dict[str, Any]:
    """The networks that a kept record stands for: how many by stage, the nearest ones and the least similar ones."""
    decisions = snapshot.decisions
    here = pc.and_(
        pc.equal(decisions["canonical"], kept["id"]), pc.is_in(decisions["stage"], pa.array(DUPLICATE_STAGES))
    )
    networks: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in snapshot.rows(here):
        if (row["nn"], row["id"]) != (kept["nn"], kept["id"]):  # profile nn-dup calls further rows exact
            networks.setdefault((row["nn"], row["id"]), []).append(row)
    speakers = [_speaker(rows) for rows in networks.values()]
    speakers.sort(key=lambda row: (-row["similarity"], DUPLICATE_STAGES.index(row["stage"]), row["nn"], row["id"]))
    by_stage = Counter(row["stage"] for row in speakers)
    entries = [
        {"name": row["nn"], "id": row["id"], "stage": row["stage"], "similarity": row["similarity"]} for row in speakers
    ]
    nearest = entries[:_SHOWN]
    return {
        "networks": len(entries),
        "by_stage": {stage: by_stage[stage] for stage in DUPLICATE_STAGES},
        "nearest": nearest,
        "least_similar": entries[max(len(nearest), len(entries) - _SHOWN) :],
    }


def _difference(
    snapshot: Snapshot, canonical: tuple[str | None, str], removed: tuple[str, str | None]
) -> list[str] | None:
    """The unified difference from the canonical's code to the removed one's, None where a code is not in the folder."""
    old = snapshot.code(canonical[1])
    new = None if removed[1] is None else snapshot.code(removed[1])
    if old is None or new is None:
        return None
    before, after = (f"{name} {(digest or '')[:16]}" for name, digest in (canonical, removed))
    return list(difflib.unified_diff(_code_lines(old), _code_lines(new), before, after, lineterm=""))


def _code_lines(code: str) -> list[str]:
    """Lines as an editor shows them, but with a mark for what it would not show: line ends other than a newline."""
    lines = code.split("\n")
    if lines[-1] == "":
        lines.pop()
    elif lines:
        lines[-1] += "  [no newline at the end]"
    return lines


# --- telling it ---------------------------------------------------------------------------------------------------


def _lines(facts: dict[str, Any]) -> list[str]:
    entries = [
        ("name", facts["name"] or "(none)"),
        ("id", facts["id"] or "none: the row has no usable code"),
        ("outcome", _outcome_text(facts)),
    ]
    if facts["reason"] != "kept":
        entries.append(("reason", facts["reason"]))
    if facts["canonical"] is not None:
        entries += _canonical_text(facts)
    if facts["score"] is not None:
        entries.append(("score", f"{facts['score']:.4f}"))
    entries += _record_text(facts)
    entries += _graph_text(facts)
    further = facts["further_rows"]
    more = f", and {plural(further, 'further row')} of this network" if further else ""
    entries.append(("row", f"{facts['row']:,}{more}"))
    unusable = facts["unusable_rows"]
    entries += [("unusable", f"row {other['row']:,} of this name: {other['reason']}") for other in unusable[:_SHOWN]]
    if len(unusable) > _SHOWN:
        entries.append(("", f"and {len(unusable) - _SHOWN:,} more"))
    entries += [("also named", f"{other['name']}: {_fate(other)}") for other in facts["other_names"]]
    lines = [f"{label:<12}{text}" for label, text in entries]
    if facts["stands_for"] is not None:
        lines += _stands_for_text(facts["stands_for"])
    if facts["diff"] is not None:
        lines += ["", *(facts["diff"] or ["the codes differ in nothing that a line shows"])]
    return lines


def _outcome_text(facts: dict[str, Any]) -> str:
    if facts["kept"]:
        rescued = {"prefix": " (for the support of its prefix)", "topup": " (as a top-up of its group)"}
        return "kept" + rescued.get(facts["rescued"], "")
    what = {
        "invalid": "removed at stage invalid: it cannot be used",
        "filter": "removed at stage filter: an option of the run left it out",
        "leak": "removed at stage leak: no split could take it",
    }
    return what.get(facts["stage"], f"removed at stage {facts['stage']}")


def _canonical_text(facts: dict[str, Any]) -> list[tuple[str, str]]:
    canonical = facts["canonical"]
    if not canonical["kept"]:
        about = "not kept itself"
    else:
        about = f"kept, {canonical['split']}, " + (
            "no score" if canonical["score"] is None else f"score {canonical['score']:.4f}"
        )
        about += f", in {canonical['folder']}" if "folder" in canonical else ""
    entries = [("canonical", f"{canonical['name']} ({about})")]
    if canonical["id"] == facts["id"]:
        entries.append(("", "the same code, character for character"))
    else:
        entries.append(("", canonical["id"]))
    similarity = "not recorded" if facts["similarity"] is None else ratio(facts["similarity"])
    if facts["threshold"] is not None:
        similarity += f" ({facts['stage']} Jaccard; the threshold is {facts['threshold']:g})"
    return [*entries, ("similarity", similarity)]


def _record_text(facts: dict[str, Any]) -> list[tuple[str, str]]:
    record = facts["record"]
    if record is None:
        return []
    benchmark = " / ".join(str(record[key]) for key in ("task", "dataset", "metric") if record[key] is not None)
    epoch = "" if record["epoch"] is None else f", epoch {record['epoch']}"
    if record["score"] is None or record["accuracy"] is None:
        score = "none: no accuracy is known"
    else:
        score = f"{record['score']:.4f}, the percentile of {record['accuracy']:.4f} on {benchmark}{epoch}"
    entries = [
        ("split", record["split"]),
        ("cluster", record["cluster"]),
        ("score", score),
        ("family", record["family"]),
    ]
    if record["weight"] != 1:
        entries.append(("weight", f"{record['weight']:g}"))
    if record["pretrained"]:
        entries.append(("pretrained", "yes: the code loads trained weights"))
    if record["runs"]:
        entries.append(("runs", "yes: constructed and run forward once"))
    elif record["runs_error"] is not None:
        entries.append(("runs", f"{'no' if record['runs'] is False else 'not tried'}: {shown(record['runs_error'])}"))
    if record.get("license"):  # older snapshots say none
        entries.append(("licence", shown(record["license"])))
    if record.get("origin"):
        near = f"{ratio(record['origin_similarity'])} to a class of it"
        entries.append(("from", shown(f"{record['origin']} ({record['origin_license']}), {near}")))
    return entries


_AGREEMENT = {
    "same": "both compute the same",
    "widths": "both compute the same up to widths",
    "different": "they compute different things",
}


def _graph_text(facts: dict[str, Any]) -> list[tuple[str, str]]:
    row, difference = facts["graph"], facts.get("graph_difference")
    if row is None:
        return []
    if row["graph"] is None:
        return [("graph", f"none: {shown(row['error'])}")]
    entries = [("graph", row["graph"])]
    if row["dead_classes"]:
        entries.append(("", f"never runs: {', '.join(row['dead_classes'])}"))
    if difference is None:
        return entries
    alike = [("start", difference["starts_alike"]), ("train", difference["trains_alike"])]
    apart = " and ".join(what for what, same in alike if not same)
    also = f", but {apart} differently" if apart and difference["agreement"] == "same" else ""
    common = (
        f"; {difference['share']:.0%} of their subtrees in common" if difference["agreement"] == "different" else ""
    )
    entries.append(("computation", _AGREEMENT[difference["agreement"]] + also + common))
    return entries + [("", line) for line in difference["differences"]]


def _stands_for_text(stands_for: dict[str, Any]) -> list[str]:
    total = stands_for["networks"]
    if not total:
        return [f"{'stands for':<12}itself alone"]
    parts = [f"{count:,} {stage}" for stage, count in stands_for["by_stage"].items() if count]
    lines = [f"{'stands for':<12}{plural(total, 'removed network')}: {', '.join(parts)}"]
    for label, entries in (("nearest", stands_for["nearest"]), ("least similar", stands_for["least_similar"])):
        if entries:
            shown = label if stands_for["least_similar"] else "these are"
            lines.append(f"  {shown}:")
            lines += [
                f"    {ratio(entry['similarity'])} {entry['stage']:<11}{entry['name']}  {entry['id'][:16]}"
                for entry in entries
            ]
    return lines
