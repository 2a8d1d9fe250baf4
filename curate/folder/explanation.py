"""The explanation of one network of a snapshot: its facts as lines to print."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from lemur_core.files import Json
from lemur_core.files.markdown import make_visible, plural, ratio

#: Maximum number of entries shown from each list.
SHOWN = 5

Entries = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Explanation:
    """Why a network was kept or removed: `lines` to print as they are, `facts` as one JSON object.

    Facts: `name`, `id`, `kept`, `stage`, `rescued`, `reason`, `row`; `further_rows` of the network, `unusable_rows` of
    the name, `other_names` of the code; of a removed duplicate `canonical`, `similarity`, `threshold`, `score`, `diff`
    and, if that is another code, `graph_difference`; of a kept network `record` without its code, and `stands_for`;
    `graph`; `measurements` on devices and the like.
    """

    facts: Json

    @cached_property
    def lines(self) -> list[str]:
        """Return the lines to print."""
        lines = [f"{label:<12}{text}" for label, text in _list_entries(self.facts)]
        if self.facts["stands_for"] is not None:
            lines += _list_duplicates(self.facts["stands_for"])
        if self.facts["diff"] is not None:
            lines += ["", *(self.facts["diff"] or ["the codes have equal lines"])]
        return [make_visible(line) for line in lines]


def describe_outcome(stage: str | None) -> str:
    """Describe whether a row was kept, or at which stage it was removed."""
    return "kept" if stage is None else f"removed at stage {stage}"


def _list_entries(facts: Json) -> Entries:
    yield "name", facts["name"] or "(none)"
    yield "id", facts["id"] or "none: the row has no usable code"
    rescued = {"prefix": " (for the support of its prefix)", "topup": " (as a top-up of its prefix)"}
    causes = {
        "invalid": ": it cannot be used",
        "filter": ": an option of the run left it out",
    }
    detail = rescued.get(facts["rescued"], "") if facts["kept"] else causes.get(facts["stage"], "")
    yield "outcome", describe_outcome(facts["stage"]) + detail
    if facts["reason"] != "kept":
        yield "reason", facts["reason"]
    if facts["canonical"] is not None:
        yield from _list_canonical(facts)
    if facts["score"] is not None:
        yield "score", f"{facts['score']:.4f}"
    if facts["record"] is not None:
        yield from _list_record(facts["record"])
    if facts["graph"] is not None:
        yield from _list_graph(facts["graph"], facts.get("graph_difference"))
    for measured in facts["measurements"][:SHOWN]:
        result = {None: "", True: ", valid", False: ", failed"}[measured["valid"]]
        duration = "" if measured["duration"] is None else f", duration {measured['duration']:,g}"
        yield "measured", f"{measured['kind']}: {measured['device'] or measured['place']}{result}{duration}"
    further = facts["further_rows"]
    more = f", and {plural(further, 'further row')} of this network" if further else ""
    yield "row", f"{facts['row']:,}{more}"
    unusable = facts["unusable_rows"]
    for other in unusable[:SHOWN]:
        yield "unusable", f"row {other['row']:,} of this name: {other['reason']}"
    if len(unusable) > SHOWN:
        yield "", f"and {len(unusable) - SHOWN:,} more"
    for other in facts["other_names"]:
        yield "also named", f"{other['name']}: {describe_outcome(other['stage'])}"


def _list_canonical(facts: Json) -> Entries:
    canonical = facts["canonical"]
    about = "not kept itself"
    if canonical["kept"]:
        score = "no score" if canonical["score"] is None else f"score {canonical['score']:.4f}"
        about = f"kept, {canonical['split']}, {score}"
    yield "canonical", f"{canonical['name']} ({about})"
    same = canonical["id"] == facts["id"]
    yield "", "the same code, character for character" if same else canonical["id"]
    similarity = "not recorded" if facts["similarity"] is None else ratio(facts["similarity"])
    if facts["threshold"] is not None:
        similarity += f" ({facts['stage']} Jaccard; the threshold is {facts['threshold']:g})"
    yield "similarity", similarity


def _list_record(record: Json) -> Entries:
    """List the facts of a kept record; some columns are absent from older snapshots."""
    benchmark = " / ".join(record[name] for name in ("task", "dataset", "metric") if record[name] is not None)
    score = record["score"]
    yield "split", record["split"]
    yield "cluster", record["cluster"]
    yield "score", "none: no accuracy is known" if score is None else f"{score:.4f}, from all its results"
    for label, column, note in (("shown", "", ": the row of best percentile"), ("best", "best_", "")):
        if record.get(f"{column}accuracy") is not None:
            epoch = record.get(f"{column}epoch")
            after = "" if epoch is None else f", epoch {epoch}"
            yield label, f"{record[f'{column}accuracy']:.4f} on {benchmark}{after}{note}"
    yield "family", record["family"]
    if record["weight"] != 1:
        yield "weight", f"{record['weight']:g}"
    if record["pretrained"]:
        yield "pretrained", "yes: the code loads trained weights"
    runs, error = record.get("runs"), record.get("runs_error")
    if runs:
        yield "runs", "yes: constructed and run forward once"
    elif error is not None:
        yield "runs", f"{'no' if runs is False else 'not tried'}: {make_visible(error)}"
    if record.get("license"):
        yield "license", make_visible(record["license"])
    if record.get("origin"):
        near = f"{ratio(record['origin_similarity'] or 0.0)} to a class of it"
        yield "from", make_visible(f"{record['origin']} ({record['origin_license']}), {near}")


_AGREEMENT = {
    "same": "both compute the same",
    "widths": "both compute the same up to widths",
    "different": "they compute different things",
}


def _list_graph(row: Json, difference: Json | None) -> Entries:
    if row["graph"] is None:
        yield "graph", f"none: {make_visible(row['error'] or '')}"
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


def _list_duplicates(stands_for: Json) -> Iterator[str]:
    total = stands_for["networks"]
    if not total:
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
