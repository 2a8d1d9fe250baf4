"""`lemur explain`: why a record was kept or removed, read from the finished snapshot folder alone.

All rows with one name and one code are one network. A code may have several names, so the two are looked up
separately: an id selects a code, a name selects a network.
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
#: Outcomes by priority: the first row with the best of these is the representative of a network.
_OUTCOME_PRIORITY = ("kept", "lexical", "structural", "graph", "leak", "exact", "filter", "invalid", "repeat")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a record was kept or removed: `lines` to print as they are, `facts` for JSON."""

    lines: list[str]
    facts: dict[str, Any]


def explain(folder: Path, name_or_id: str, against: Sequence[Path] = (), *, partial: bool = False) -> Explanation:
    """Explain what a snapshot decided about one network.

    Args:
        folder: a snapshot folder.
        name_or_id: an exact name, an id, or the first six or more digits of one.
        against: the folders that a delta extends, unless they lie next to it under their names.
        partial: ignore missing parents.

    Returns: the full explanation, with the difference between the two codes if the network is a duplicate.

    Raises: UserError if the folder is not a snapshot, a parent of a delta is missing, or no or several networks match.
    """
    with read_errors(folder):
        snapshot = SnapshotTables(folder)
        parents = find_parents(folder, snapshot.manifest, against, partial=partial)
        snapshot.parents = [SnapshotTables(parent) for parent in parents]
        return _explain(snapshot, name_or_id)


@contextlib.contextmanager
def read_errors(folder: Path) -> Iterator[None]:
    """Report failures to read a snapshot as one line.

    Raises: UserError instead of the errors of Arrow or the system.
    """
    try:
        yield
    except (OSError, KeyError, pa.ArrowException) as error:
        detail = str(error).splitlines()[0]
        raise UserError(f"{folder}: damaged snapshot: {detail}; run `lemur verify`, or create it again") from error


class SnapshotTables:
    """The tables of a snapshot folder; code is read for single ids only.

    Attributes: parents: of a delta, the folders that it extends; records, graphs and codes are looked up there too.

    Raises: UserError if the folder is not a snapshot.
    """

    def __init__(self, folder: Path) -> None:
        self.parents: Sequence[SnapshotTables] = ()
        self.manifest = read_manifest(folder)
        if self.manifest.kind != "snapshot":
            what = article(self.manifest.kind)
            raise UserError(f"{folder}: holds {what}, not a snapshot; give the folder that `lemur curate` wrote")
        table = pq.read_table(folder / "decisions.parquet", columns=list(_DECISION_COLUMNS), memory_map=True)
        self.decisions = table.combine_chunks()
        self.folder = folder

    def rows(self, mask: pa.Array | pa.ChunkedArray) -> list[dict[str, Any]]:
        """Return the decisions selected by a mask, in input order."""
        rows: list[dict[str, Any]] = self.decisions.filter(mask).to_pylist()
        return rows

    def select_rows(self, column: str, value: str) -> list[dict[str, Any]]:
        """Return the decisions on all rows with this name (`nn`) or code (`id`)."""
        return self.rows(pc.equal(self.decisions[column], value))

    def record(self, digest: str) -> dict[str, Any] | None:
        """Return the kept record of an id, without its code."""
        own = next((row for path in self._record_files() for row in _read_row(path, digest, _RECORD_COLUMNS)), None)
        return own or self._look_up_published("record", digest)

    def graph(self, digest: str | None) -> dict[str, Any] | None:
        """Return the graph row of a code: what it computes, or why that is unknown; None if it was not traced."""
        path = self.folder / "graphs.parquet"
        if digest is None or not path.exists():
            return None
        own = next(iter(_read_row(path, digest, tuple(GraphRow.model_fields))), None)
        return own or self._look_up_published("graph", digest)

    def code(self, digest: str) -> str | None:
        """Return the code of an id, kept or removed."""
        files = [*self._record_files(), self.folder / "removed.parquet"]
        own = next((row["nn_code"] for path in files for row in _read_row(path, digest, ("nn_code",))), None)
        text: str | None = own or self._look_up_published("code", digest)
        return text

    def find_folder(self, digest: str) -> str | None:
        """Return the folder of a published record, among a delta's parents."""
        return next((str(parent.folder) for parent in self.parents if parent.record(digest) is not None), None)

    def find_removed_score(self, digest: str) -> float | None:
        """Return the score of a removed code, if it has one."""
        rows = _read_row(self.folder / "removed.parquet", digest, ("score",))
        return rows[0]["score"] if rows else None

    def threshold(self, stage: str | None) -> float | None:
        """Return the threshold of a stage, if it has one."""
        value = self.manifest.parameters.get(f"{stage}_threshold") if stage in ("lexical", "structural") else None
        return None if value is None else float(value)

    def _look_up_published(self, what: str, digest: str) -> Any:
        items = (getattr(parent, what)(digest) for parent in self.parents)
        return next((item for item in items if item is not None), None)

    def _record_files(self) -> list[Path]:
        return record_files(self.folder)


def _read_row(path: Path, digest: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the row of an id in one file, if present; only the matching row group is read beyond its ids."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            index = pc.index(file.read_row_group(group, columns=["id"])["id"], digest).as_py()
            if index >= 0:
                rows: list[dict[str, Any]] = (
                    file.read_row_group(group, columns=list(columns)).slice(index, 1).to_pylist()
                )
                return rows
    return []


# # --- finding the network ------------------------------------------------------------------------------------------


def _find(snapshot: SnapshotTables, wanted: str) -> list[dict[str, Any]]:
    """Return the rows of the requested network (by name) or code (by id), in input order."""
    named = snapshot.select_rows("nn", wanted)
    if named:
        digests = sorted({row["id"] for row in named if row["id"] is not None})
        if len(digests) > 1:
            entries = [
                f"{digest[:16]} ({_describe_outcome(_find_representative([r for r in named if r['id'] == digest]))})"
                for digest in digests
            ]
            raise UserError(f"{wanted!r} is the name of {len(digests)} codes: {_shorten_list(entries)}; give an id")
        return [row for row in named if row["id"] == digests[0]] if digests else named
    digits = wanted.lower()
    if re.fullmatch(rf"[0-9a-f]{{{MIN_ID_DIGITS},64}}", digits):
        rows = snapshot.rows(pc.starts_with(snapshot.decisions["id"], digits))
        names = {row["id"]: row["nn"] for row in reversed(rows)}
        if len(names) > 1:
            entries = [f"{digest[:16]} ({names[digest]})" for digest in sorted(names)]
            raise UserError(f"{wanted!r} begins {len(names)} ids: {_shorten_list(entries)}; give more digits")
        if rows:
            return rows
    raise UserError(_unknown_message(snapshot, wanted))


def _unknown_message(snapshot: SnapshotTables, wanted: str) -> str:
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
    return (
        f"{start}; near names: {_shorten_list(near[:_SHOWN])}"
        if near
        else f"{start}; decisions.parquet lists all names"
    )


def _shorten_list(entries: Sequence[str]) -> str:
    more = len(entries) - _SHOWN
    return ", ".join(entries[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _find_representative(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the representative row of a network."""
    return min(rows, key=lambda row: (_OUTCOME_PRIORITY.index(_outcome(row)), row["row"]))


def _outcome(row: dict[str, Any]) -> str:
    return "kept" if row["kept"] else row["stage"]


def _describe_outcome(row: dict[str, Any]) -> str:
    return "kept" if row["kept"] else f"removed at stage {row['stage']}"


# # --- collecting the facts -----------------------------------------------------------------------------------------


def draw_graph(explanation: Explanation, path: Path) -> str:
    """Draw what an explained network computes in eval mode, and return a message that says so.

    Raises: UserError if that is unknown; UsageError unless the file is an `.svg`.
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
        raise UserError(f"{name}: its graph cannot be read: {error}; create the snapshot again") from error
    return f"{path}: {plural(draw(graph, path, name), 'box', 'boxes')}, what it computes in eval mode"


def _explain(snapshot: SnapshotTables, wanted: str) -> Explanation:
    rows = _find(snapshot, wanted)
    row = _find_representative(rows)
    digest, name = row["id"], row["nn"]
    of_code = rows if digest is None else snapshot.select_rows("id", digest)
    unusable = [
        other for other in snapshot.select_rows("nn", name) if other["id"] is None and other["row"] != row["row"]
    ]
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
        canonical = _describe_canonical(snapshot, row["canonical"])
        facts["canonical"] = canonical
        facts["similarity"], facts["threshold"] = row["similarity"], snapshot.threshold(row["stage"])
        facts["score"] = snapshot.find_removed_score(digest)
        if canonical["id"] != digest:
            facts["graph_difference"] = _graph_difference(snapshot, row["canonical"], digest)
            facts["diff"] = _difference(snapshot, (canonical["name"], canonical["id"]), (name, digest))
    elif row["kept"]:
        facts["record"] = snapshot.record(digest)
    if row["kept"]:
        facts["stands_for"] = _list_duplicates(snapshot, row)
    return Explanation([shown(line) for line in _format_facts(facts)], facts)


def _graph_difference(snapshot: SnapshotTables, canonical: str, removed: str) -> dict[str, Any] | None:
    """Compare what two codes compute; None if a graph is unknown."""
    canonical_row, removed_row = (snapshot.graph(digest) for digest in (canonical, removed))
    if canonical_row is None or removed_row is None or canonical_row["graph"] is None or removed_row["graph"] is None:
        return None
    pairs = [
        [Graph.from_json(json.loads(row[mode])) for row in (canonical_row, removed_row)]
        for mode in ("eval", "train")
        if canonical_row[mode] is not None and removed_row[mode] is not None
    ]
    agreement = "widths" if canonical_row["graph_widths"] == removed_row["graph_widths"] else "different"
    return {
        "agreement": "same" if canonical_row["graph"] == removed_row["graph"] else agreement,
        "share": share(pairs[0][0], pairs[0][1]),
        "starts_alike": canonical_row["initial"] == removed_row["initial"],
        "trains_alike": canonical_row["glue"] == removed_row["glue"],
        "differences": list(dict.fromkeys(line for pair in pairs for line in differences(pair[0], pair[1]))),
    }


def _describe_canonical(snapshot: SnapshotTables, digest: str) -> dict[str, Any]:
    """Describe the canonical record of a removed one."""
    record = snapshot.record(digest)
    if record is not None:
        facts = {"id": digest, "name": record["nn"], "kept": True, "split": record["split"], "score": record["score"]}
        return facts | ({"folder": folder} if (folder := snapshot.find_folder(digest)) is not None else {})
    rows = snapshot.select_rows("id", digest)  # profile nn-dup may name a canonical that was itself removed
    return {
        "id": digest,
        "name": _find_representative(rows)["nn"] if rows else None,
        "kept": False,
        "split": None,
        "score": None,
    }


def _other_names(of_code: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the other names of the same code with their outcomes, by name."""
    if of_code[0]["id"] is None:
        return []
    names = sorted({row["nn"] for row in of_code} - {name})
    representatives = [_find_representative([row for row in of_code if row["nn"] == other]) for other in names]
    return [
        {"name": row["nn"], "kept": row["kept"], "stage": row["stage"], "reason": row["reason"]}
        for row in representatives
    ]


def _list_duplicates(snapshot: SnapshotTables, kept: dict[str, Any]) -> dict[str, Any]:
    """Return the duplicates of a kept record: how many by stage, the nearest and the least similar ones."""
    decisions = snapshot.decisions
    is_duplicate = pc.and_(
        pc.equal(decisions["canonical"], kept["id"]), pc.is_in(decisions["stage"], pa.array(DUPLICATE_STAGES))
    )
    networks: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in snapshot.rows(is_duplicate):
        if (row["nn"], row["id"]) != (kept["nn"], kept["id"]):  # profile nn-dup calls further rows exact
            networks.setdefault((row["nn"], row["id"]), []).append(row)
    representatives = [_find_representative(rows) for rows in networks.values()]
    representatives.sort(
        key=lambda row: (-row["similarity"], DUPLICATE_STAGES.index(row["stage"]), row["nn"], row["id"])
    )
    by_stage = Counter(row["stage"] for row in representatives)
    entries = [
        {"name": row["nn"], "id": row["id"], "stage": row["stage"], "similarity": row["similarity"]}
        for row in representatives
    ]
    nearest = entries[:_SHOWN]
    return {
        "networks": len(entries),
        "by_stage": {stage: by_stage[stage] for stage in DUPLICATE_STAGES},
        "nearest": nearest,
        "least_similar": entries[max(len(nearest), len(entries) - _SHOWN) :],
    }


def _difference(
    snapshot: SnapshotTables, canonical: tuple[str | None, str], removed: tuple[str, str | None]
) -> list[str] | None:
    """Return the unified difference from the canonical's code to the removed one's; None if a code is missing."""
    old = snapshot.code(canonical[1])
    new = None if removed[1] is None else snapshot.code(removed[1])
    if old is None or new is None:
        return None
    before, after = (f"{name} {(digest or '')[:16]}" for name, digest in (canonical, removed))
    return list(difflib.unified_diff(_split_code(old), _split_code(new), before, after, lineterm=""))


def _split_code(code: str) -> list[str]:
    """Split into lines as an editor shows them, marking what it would not show: a missing newline at the end."""
    lines = code.split("\n")
    if lines[-1] == "":
        lines.pop()
    elif lines:
        lines[-1] += "  [no newline at the end]"
    return lines


# # --- the output ---------------------------------------------------------------------------------------------------


def _format_facts(facts: dict[str, Any]) -> list[str]:
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
    entries += [("also named", f"{other['name']}: {_describe_outcome(other)}") for other in facts["other_names"]]
    lines = [f"{label:<12}{text}" for label, text in entries]
    if facts["stands_for"] is not None:
        lines += _duplicates_text(facts["stands_for"])
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
    different_parts = " and ".join(what for what, same in alike if not same)
    also = f", but {different_parts} differently" if different_parts and difference["agreement"] == "same" else ""
    common = (
        f"; {difference['share']:.0%} of their subtrees in common" if difference["agreement"] == "different" else ""
    )
    entries.append(("computation", _AGREEMENT[difference["agreement"]] + also + common))
    return entries + [("", line) for line in difference["differences"]]


def _duplicates_text(stands_for: dict[str, Any]) -> list[str]:
    total = stands_for["networks"]
    if not total:
        return [f"{'stands for':<12}itself alone"]
    parts = [f"{count:,} {stage}" for stage, count in stands_for["by_stage"].items() if count]
    lines = [f"{'stands for':<12}{plural(total, 'removed network')}: {', '.join(parts)}"]
    for label, entries in (("nearest", stands_for["nearest"]), ("least similar", stands_for["least_similar"])):
        if entries:
            title = label if stands_for["least_similar"] else "these are"
            lines.append(f"  {title}:")
            lines += [
                f"    {ratio(entry['similarity'])} {entry['stage']:<11}{entry['name']}  {entry['id'][:16]}"
                for entry in entries
            ]
    return lines
