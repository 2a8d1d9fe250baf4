"""`lemur explain`: why a record was kept or removed, read from the finished snapshot folder alone.

All rows with one name and one code are one network. A code may have several names, so the two are looked up
separately: an id selects a code, a name selects a network.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from curate.compute.graphs import GraphTrace
from curate.folder.explanation import (
    SHOWN,
    Canonical,
    Duplicate,
    Duplicates,
    Explanation,
    GraphDifference,
    OtherName,
    UnusableRow,
    describe_outcome,
)
from curate.published.outcome import DUPLICATE_STAGES
from curate.published.published import find_parents
from lemur_core.describe.picture import check_picture, draw
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible, plural
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import differences, share
from manifests.folders.formats import SNAPSHOT
from manifests.folders.tables import as_records, find_row, read_table
from manifests.records import Decision, GraphRow, LemurRecord, Removed

T = TypeVar("T")

#: Hexadecimal digits that an abbreviated id must have.
MIN_ID_DIGITS = 6

_BENCHMARK = ("task", "dataset", "metric", "epoch", "accuracy", "best_accuracy", "best_epoch")
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
    with SNAPSHOT.reading(folder):
        snapshot = SnapshotTables(folder)
        parents = find_parents(folder, snapshot.manifest, against, partial=partial)
        snapshot.parents = [SnapshotTables(parent) for parent in parents]
        return _explain(snapshot, name_or_id)


class SnapshotTables:
    """The tables of a snapshot folder; code is read for single ids only.

    Attributes: parents: of a delta, the folders that it extends; records, graphs and codes are looked up there too.

    Raises: UserError if the folder is not a snapshot.
    """

    def __init__(self, folder: Path) -> None:
        self.parents: Sequence[SnapshotTables] = ()
        self.manifest = SNAPSHOT.open(folder)
        table = read_table([folder / "decisions.parquet"], Decision, _DECISION_COLUMNS)
        self.decisions = table.combine_chunks()
        self.folder = folder

    def rows(self, mask: pa.Array | pa.ChunkedArray) -> list[Decision]:
        """Return the decisions selected by a mask, in input order."""
        return as_records(self.decisions.filter(mask), Decision)

    def select_rows(self, column: str, value: str) -> list[Decision]:
        """Return the decisions on all rows with this name (`nn`) or code (`id`)."""
        return self.rows(pc.equal(self.decisions[column], value))

    def record(self, digest: str) -> LemurRecord | None:
        """Return the kept record of an id, without its code."""
        own = find_row(SNAPSHOT.files(self.folder, "records"), LemurRecord, digest, _RECORD_COLUMNS)
        return own or _first(parent.record(digest) for parent in self.parents)

    def graph(self, digest: str | None) -> GraphRow | None:
        """Return the graph row of a code: what it computes, or why that is unknown; None if it was not traced."""
        files = SNAPSHOT.files(self.folder, "graphs")
        if digest is None or not files:  # a delta compares graphs if its parents do
            return None
        own = find_row(files, GraphRow, digest, tuple(GraphRow.model_fields))
        return own or _first(parent.graph(digest) for parent in self.parents)

    def code(self, digest: str) -> str | None:
        """Return the code of an id, kept or removed."""
        files = [*SNAPSHOT.files(self.folder, "records"), *SNAPSHOT.files(self.folder, "removed")]
        own = find_row(files, Removed, digest, ("nn_code",))  # records have this column, too
        return own.nn_code if own else _first(parent.code(digest) for parent in self.parents)

    def find_folder(self, digest: str) -> str | None:
        """Return the folder of a published record, among a delta's parents."""
        return next((str(parent.folder) for parent in self.parents if parent.record(digest) is not None), None)

    def find_removed_score(self, digest: str) -> float | None:
        """Return the score of a removed code, if it has one."""
        row = find_row([self.folder / "removed.parquet"], Removed, digest, ("score",))
        return row.score if row else None

    def threshold(self, stage: str | None) -> float | None:
        """Return the threshold of a stage, if it has one."""
        value = self.manifest.parameters.get(f"{stage}_threshold") if stage in ("lexical", "structural") else None
        return None if value is None else float(value)


def _first(items: Iterable[T | None]) -> T | None:
    return next((item for item in items if item is not None), None)


# --- finding the network ------------------------------------------------------------------------------------------


def _find(snapshot: SnapshotTables, wanted: str) -> list[Decision]:
    """Return the rows of the requested network (by name) or code (by id), in input order."""
    named = snapshot.select_rows("nn", wanted)
    if named:
        digests = sorted({row.id for row in named if row.id is not None})
        if len(digests) > 1:
            entries = [
                f"{digest[:16]} ({describe_outcome(_find_representative([r for r in named if r.id == digest]))})"
                for digest in digests
            ]
            raise UserError(f"{wanted!r} is the name of {len(digests)} codes: {_shorten_list(entries)}; give an id")
        return [row for row in named if row.id == digests[0]] if digests else named
    digits = wanted.lower()
    if re.fullmatch(rf"[0-9a-f]{{{MIN_ID_DIGITS},64}}", digits):
        rows = snapshot.rows(pc.starts_with(snapshot.decisions["id"], digits))
        names = {row.id or "": row.nn for row in reversed(rows)}
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
        :SHOWN
    ]
    near += [name for name in difflib.get_close_matches(wanted, names, SHOWN) if name not in near]
    start = (
        f"{wanted!r}: no network of this snapshot has this name, and no id of {MIN_ID_DIGITS} or more digits begins so"
    )
    return (
        f"{start}; near names: {_shorten_list(near[:SHOWN])}" if near else f"{start}; decisions.parquet lists all names"
    )


def _shorten_list(entries: Sequence[str]) -> str:
    more = len(entries) - SHOWN
    return ", ".join(entries[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _find_representative(rows: Sequence[Decision]) -> Decision:
    """Return the representative row of a network."""
    return min(rows, key=lambda row: (_OUTCOME_PRIORITY.index(_outcome(row)), row.row))


def _outcome(row: Decision) -> str:
    return "kept" if row.kept else str(row.stage)


# --- collecting the facts -----------------------------------------------------------------------------------------


def draw_graph(explanation: Explanation, path: Path) -> str:
    """Draw what an explained network computes in eval mode, and return a message that says so.

    Raises: UserError if that is unknown; UsageError unless the file is an `.svg`.
    """
    check_picture(path)
    row, name = explanation.graph, f"{explanation.name} {(explanation.id or '')[:16]}"
    if row is None:
        raise UserError(f"{name}: was not traced, so there is no graph to draw; `lemur curate --graph all` traces all")
    if row.graph is None:
        raise UserError(f"{name}: has no graph to draw: {make_visible(row.error or '')}")
    try:
        graph = Graph.from_json(json.loads(row.eval or ""))
    except ValueError as error:
        raise UserError(f"{name}: its graph cannot be read: {error}; create the snapshot again") from error
    return f"{path}: {plural(draw(graph, path, name), 'box', 'boxes')}, what it computes in eval mode"


def _explain(snapshot: SnapshotTables, wanted: str) -> Explanation:
    rows = _find(snapshot, wanted)
    row = _find_representative(rows)
    digest, name = row.id, row.nn
    of_code = rows if digest is None else snapshot.select_rows("id", digest)
    unusable = [other for other in snapshot.select_rows("nn", name) if other.id is None and other.row != row.row]
    explanation = Explanation(
        name=name,
        id=digest,
        kept=row.kept,
        stage=row.stage,
        rescued=row.rescued,
        reason=row.reason,
        row=row.row,
        further_rows=sum(other.nn == name for other in of_code) - 1 if digest is not None else 0,
        unusable_rows=[UnusableRow(other.row, other.reason) for other in unusable],
        other_names=_other_names(of_code, name),
        record=snapshot.record(digest) if row.kept and digest is not None else None,
        stands_for=_list_duplicates(snapshot, row) if row.kept else None,
        graph=snapshot.graph(digest),
    )
    if row.kept or row.canonical is None or digest is None:
        return explanation
    canonical = _describe_canonical(snapshot, row.canonical)
    explanation = replace(
        explanation,
        canonical=canonical,
        similarity=row.similarity,
        threshold=snapshot.threshold(row.stage),
        score=snapshot.find_removed_score(digest),
    )
    if canonical.id == digest:
        return explanation
    return replace(
        explanation,
        diff=_difference(snapshot, (canonical.name, canonical.id), (name, digest)),
        graph_difference=_graph_difference(snapshot, row.canonical, digest),
    )


def _graph_difference(snapshot: SnapshotTables, canonical: str, removed: str) -> GraphDifference | None:
    """Compare the graphs of two codes; None if one has none."""
    kept_row, removed_row = (snapshot.graph(digest) for digest in (canonical, removed))
    if kept_row is None or removed_row is None or kept_row.graph is None or removed_row.graph is None:
        return None
    modes = ((kept_row.eval, removed_row.eval), (kept_row.train, removed_row.train))
    pairs = [
        (Graph.from_json(json.loads(before)), Graph.from_json(json.loads(after)))
        for before, after in modes
        if before is not None and after is not None
    ]
    agreement = GraphTrace(kept_row.model_dump()).agrees(GraphTrace(removed_row.model_dump()))
    assert agreement is not None  # both have a graph
    return GraphDifference(
        agreement=agreement,
        share=share(*pairs[0]),
        starts_alike=kept_row.initial == removed_row.initial,
        trains_alike=kept_row.glue == removed_row.glue,
        differences=list(dict.fromkeys(line for pair in pairs for line in differences(*pair))),
    )


def _describe_canonical(snapshot: SnapshotTables, digest: str) -> Canonical:
    """Describe the canonical record of a removed one."""
    record = snapshot.record(digest)
    if record is not None:
        return Canonical(digest, record.nn, True, record.split, record.score, snapshot.find_folder(digest))
    rows = snapshot.select_rows("id", digest)  # profile nn-dup may name a canonical that was itself removed
    return Canonical(digest, _find_representative(rows).nn if rows else None, kept=False)


def _other_names(of_code: Sequence[Decision], name: str) -> list[OtherName]:
    """Return the other names of the same code with their outcomes, by name."""
    if of_code[0].id is None:
        return []
    names = sorted({row.nn for row in of_code} - {name})
    representatives = [_find_representative([row for row in of_code if row.nn == other]) for other in names]
    return [OtherName(row.nn, row.kept, row.stage, row.reason) for row in representatives]


def _list_duplicates(snapshot: SnapshotTables, kept: Decision) -> Duplicates:
    """Return the duplicates of a kept record: how many by stage, the nearest and the least similar ones."""
    decisions = snapshot.decisions
    is_duplicate = pc.and_(
        pc.equal(decisions["canonical"], kept.id), pc.is_in(decisions["stage"], pa.array(DUPLICATE_STAGES))
    )
    networks: dict[tuple[str, str | None], list[Decision]] = {}
    for row in snapshot.rows(is_duplicate):
        if (row.nn, row.id) != (kept.nn, kept.id):  # profile nn-dup calls further rows exact
            networks.setdefault((row.nn, row.id), []).append(row)
    duplicates = []
    for row in map(_find_representative, networks.values()):
        assert row.id is not None
        assert row.stage is not None
        assert row.similarity is not None
        duplicates.append(Duplicate(row.nn, row.id, row.stage, row.similarity))
    duplicates.sort(key=lambda item: (-item.similarity, DUPLICATE_STAGES.index(item.stage), item.name, item.id))
    by_stage: Counter[str] = Counter(duplicate.stage for duplicate in duplicates)
    nearest = duplicates[:SHOWN]
    return Duplicates(
        networks=len(duplicates),
        by_stage={stage: by_stage[stage] for stage in DUPLICATE_STAGES},
        nearest=nearest,
        least_similar=duplicates[max(len(nearest), len(duplicates) - SHOWN) :],
    )


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
