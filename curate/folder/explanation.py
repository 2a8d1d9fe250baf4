"""The explanation of one network of a snapshot: its facts, as JSON or as lines to print."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

from lemur_core.files import Json
from lemur_core.files.markdown import make_visible, plural, ratio
from manifests.records import Agreement, Decision, GraphRow, LemurRecord, Stage

#: Maximum number of entries shown from each list.
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Canonical:
    """The record that represents a removed network."""

    id: str
    name: str | None
    kept: bool
    split: str | None = None
    score: float | None = None
    folder: str | None = None  # where the record is published, if it is not in this snapshot


@dataclass(frozen=True, slots=True)
class OtherName:
    """Another name of the same code, and its outcome."""

    name: str
    kept: bool
    stage: Stage | None
    reason: str


@dataclass(frozen=True, slots=True)
class UnusableRow:
    """A row of the same name without usable code."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A network that a kept record represents."""

    name: str
    id: str
    stage: Stage
    similarity: float


@dataclass(frozen=True, slots=True)
class Duplicates:
    """The networks that a kept record represents: their numbers by stage, the most and the least similar ones."""

    networks: int
    by_stage: Mapping[str, int]
    nearest: Sequence[Duplicate]
    least_similar: Sequence[Duplicate]


@dataclass(frozen=True, slots=True)
class GraphDifference:
    """How the computation of a removed network compares with that of its canonical record."""

    agreement: Agreement
    share: float  # of subtrees that both have
    starts_alike: bool  # equal initialization of parameters
    trains_alike: bool  # equal train_setup and learn
    differences: Sequence[str]


@dataclass(frozen=True)
class Explanation:
    """Why a network was kept or removed: `lines` to print as they are, `facts` for JSON."""

    name: str
    id: str | None
    kept: bool
    stage: Stage | None
    rescued: Literal["prefix", "topup"] | None
    reason: str
    row: int
    further_rows: int = 0
    unusable_rows: Sequence[UnusableRow] = ()
    other_names: Sequence[OtherName] = ()
    canonical: Canonical | None = None  # of a removed duplicate
    similarity: float | None = None
    threshold: float | None = None
    score: float | None = None
    record: LemurRecord | None = None  # of a kept network, without its code
    stands_for: Duplicates | None = None
    diff: Sequence[str] | None = None
    graph: GraphRow | None = None
    graph_difference: GraphDifference | None = None

    @cached_property
    def facts(self) -> Json:
        """Return all facts as one JSON object."""
        facts = asdict(self)
        for name in ("record", "graph"):
            row = getattr(self, name)
            facts[name] = None if row is None else {key: value for key, value in row if key in row.model_fields_set}
        if self.canonical is not None and self.canonical.folder is None:
            del facts["canonical"]["folder"]
        # The comparison of graphs is stated only where two different codes were compared, as in earlier versions.
        if self.canonical is None or self.canonical.id == self.id:
            del facts["graph_difference"]
        return facts

    @cached_property
    def lines(self) -> list[str]:
        """Return the lines to print."""
        return [make_visible(line) for line in _list_lines(self)]


def describe_outcome(row: Decision | OtherName) -> str:
    """Describe whether a row was kept, or at which stage it was removed."""
    return "kept" if row.kept else f"removed at stage {row.stage}"


def _list_lines(facts: Explanation) -> list[str]:
    entries = [
        ("name", facts.name or "(none)"),
        ("id", facts.id or "none: the row has no usable code"),
        ("outcome", _describe_kept(facts)),
    ]
    if facts.reason != "kept":
        entries.append(("reason", facts.reason))
    entries += _list_canonical(facts)
    if facts.score is not None:
        entries.append(("score", f"{facts.score:.4f}"))
    entries += _list_record(facts)
    entries += _list_graph(facts)
    further = facts.further_rows
    more = f", and {plural(further, 'further row')} of this network" if further else ""
    entries.append(("row", f"{facts.row:,}{more}"))
    unusable = facts.unusable_rows
    entries += [("unusable", f"row {other.row:,} of this name: {other.reason}") for other in unusable[:SHOWN]]
    if len(unusable) > SHOWN:
        entries.append(("", f"and {len(unusable) - SHOWN:,} more"))
    entries += [("also named", f"{other.name}: {describe_outcome(other)}") for other in facts.other_names]
    lines = [f"{label:<12}{text}" for label, text in entries]
    if facts.stands_for is not None:
        lines += _list_duplicates(facts.stands_for)
    if facts.diff is not None:
        lines += ["", *(facts.diff or ["the codes have equal lines"])]
    return lines


def _describe_kept(facts: Explanation) -> str:
    if facts.kept:
        rescued = {"prefix": " (for the support of its prefix)", "topup": " (as a top-up of its group)"}
        return "kept" + rescued.get(facts.rescued or "", "")
    causes = {
        "invalid": ": it cannot be used",
        "filter": ": an option of the run left it out",
        "leak": ": no split could take it",
    }
    return f"removed at stage {facts.stage}{causes.get(facts.stage or '', '')}"


def _list_canonical(facts: Explanation) -> list[tuple[str, str]]:
    canonical = facts.canonical
    if canonical is None:
        return []
    about = "not kept itself"
    if canonical.kept:
        score = "no score" if canonical.score is None else f"score {canonical.score:.4f}"
        folder = f", in {canonical.folder}" if canonical.folder is not None else ""
        about = f"kept, {canonical.split}, {score}{folder}"
    entries = [("canonical", f"{canonical.name} ({about})")]
    entries.append(("", "the same code, character for character" if canonical.id == facts.id else canonical.id))
    similarity = "not recorded" if facts.similarity is None else ratio(facts.similarity)
    if facts.threshold is not None:
        similarity += f" ({facts.stage} Jaccard; the threshold is {facts.threshold:g})"
    return [*entries, ("similarity", similarity)]


def _list_record(facts: Explanation) -> list[tuple[str, str]]:
    record = facts.record
    if record is None:
        return []
    benchmark = " / ".join(value for value in (record.task, record.dataset, record.metric) if value is not None)
    epoch = "" if record.epoch is None else f", epoch {record.epoch}"
    score = "none: no accuracy is known" if record.score is None else f"{record.score:.4f}, from all its results"
    entries = [("split", record.split), ("cluster", record.cluster), ("score", score)]
    if record.accuracy is not None:
        entries.append(("shown", f"{record.accuracy:.4f} on {benchmark}{epoch}: the row of best percentile"))
    if record.best_accuracy is not None:  # absent from older snapshots
        after = "" if record.best_epoch is None else f", epoch {record.best_epoch}"
        entries.append(("best", f"{record.best_accuracy:.4f} on {benchmark}{after}"))
    entries.append(("family", record.family))
    if record.weight != 1:
        entries.append(("weight", f"{record.weight:g}"))
    if record.pretrained:
        entries.append(("pretrained", "yes: the code loads trained weights"))
    if record.runs:
        entries.append(("runs", "yes: constructed and run forward once"))
    elif record.runs_error is not None:
        entries.append(("runs", f"{'no' if record.runs is False else 'not tried'}: {make_visible(record.runs_error)}"))
    if record.license:  # absent from older snapshots
        entries.append(("licence", make_visible(record.license)))
    if record.origin:
        near = f"{ratio(record.origin_similarity or 0.0)} to a class of it"
        entries.append(("from", make_visible(f"{record.origin} ({record.origin_license}), {near}")))
    return entries


_AGREEMENT = {
    "same": "both compute the same",
    "widths": "both compute the same up to widths",
    "different": "they compute different things",
}


def _list_graph(facts: Explanation) -> list[tuple[str, str]]:
    row, difference = facts.graph, facts.graph_difference
    if row is None:
        return []
    if row.graph is None:
        return [("graph", f"none: {make_visible(row.error or '')}")]
    entries = [("graph", row.graph)]
    if row.dead_classes:
        entries.append(("", f"never runs: {', '.join(row.dead_classes)}"))
    if difference is None:
        return entries
    agreements = [("start", difference.starts_alike), ("train", difference.trains_alike)]
    different_parts = " and ".join(what for what, same in agreements if not same)
    also = f", but {different_parts} differently" if different_parts and difference.agreement == "same" else ""
    common = f"; {difference.share:.0%} of their subtrees in common" if difference.agreement == "different" else ""
    entries.append(("computation", _AGREEMENT[difference.agreement] + also + common))
    return entries + [("", line) for line in difference.differences]


def _list_duplicates(stands_for: Duplicates) -> list[str]:
    total = stands_for.networks
    if not total:
        return [f"{'stands for':<12}itself alone"]
    parts = [f"{count:,} {stage}" for stage, count in stands_for.by_stage.items() if count]
    lines = [f"{'stands for':<12}{plural(total, 'removed network')}: {', '.join(parts)}"]
    for label, entries in (("nearest", stands_for.nearest), ("least similar", stands_for.least_similar)):
        if entries:
            title = label if stands_for.least_similar else "these are"
            lines.append(f"  {title}:")
            lines += [
                f"    {ratio(entry.similarity)} {entry.stage:<11}{entry.name}  {entry.id[:16]}" for entry in entries
            ]
    return lines
