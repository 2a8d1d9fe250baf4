"""The difference of two corpora or snapshots: which networks came, went, changed their name or code, and what moved."""

import contextlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from curate.model.options import get_prefix
from curate.sources import open_source
from lemur_core.files import Json
from lemur_core.files.atomic import PathLike
from lemur_core.files.markdown import code_span, plural, table
from lemur_core.files.progress import hide_progress
from manifests.folders.kinds import SNAPSHOT
from manifests.folders.manifest import FILE_NAME, read_manifest
from manifests.records import NetworkRow, Stat

#: The kinds of change, in the order of the table.
KINDS = {
    "new": "networks under a new name, with a new code",
    "copied": "new names of a code that is there under an old name, too",
    "renamed": "new names of a code whose old name is gone",
    "recomputed": "new names and codes that compute what a network of BEFORE computes",
    "changed": "names that have another code now",
    "gone": "names that are gone, and were not renamed",
    "runs": "networks of both with results that only one has",
    "best": "best results that moved",
}
_SHOWN = 20  # rows of each kind in the text
_RUN = ("task", "dataset", "metric", "epoch", "accuracy", "duration", "prm")


class Change(NamedTuple):
    """One change of one network.

    `nn` is its name in AFTER (of `gone` in BEFORE) and `other` its name in BEFORE where that differs. `before` and
    `after` are accuracies of `best`; of `runs` the number of results that BEFORE alone and AFTER alone has.
    """

    change: str
    nn: str
    other: str | None = None
    task: str | None = None
    dataset: str | None = None
    metric: str | None = None
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class Difference:
    """The difference of two corpora or snapshots.

    Attributes:
        before, after: their names, with versions.
        totals: networks, distinct codes and results of both.
        prefixes: counts by prefix: networks of both, and of each kind of change.
        changes: by kind, then by name.
    """

    before: str
    after: str
    totals: Mapping[str, tuple[int, int]]
    prefixes: Mapping[str, Mapping[str, int]]
    changes: tuple[Change, ...]

    def counts(self) -> dict[str, int]:
        """Return the number of changes by kind."""
        found = Counter(change.change for change in self.changes)
        return {kind: found[kind] for kind in KINDS}

    def to_json(self) -> Json:
        """Return all of it as one JSON object."""
        changes = [change._asdict() for change in self.changes]
        return {"counts": self.counts(), **vars(self), "changes": changes}

    def to_markdown(self) -> str:
        """Return the text of a release note: totals, counts by prefix, and the first changes of each kind."""
        counts = self.counts()
        lines = [f"# {code_span(self.before)} → {code_span(self.after)}", ""]
        lines += table(("", "before", "after"), [(name, f"{a:,}", f"{b:,}") for name, (a, b) in self.totals.items()])
        lines += table(("change", "count"), [(words, f"{counts[kind]:,}") for kind, words in KINDS.items()])
        head = ("before", "after", *KINDS)
        moved = {name: row for name, row in self.prefixes.items() if row.keys() & KINDS.keys()}
        rows = [(code_span(name), *(f"{row.get(column, 0):,}" for column in head)) for name, row in moved.items()]
        if rows:
            lines += ["## Prefixes with changes", "", *table(("prefix", *head), rows)]
        for kind, words in KINDS.items():
            found = [change for change in self.changes if change.change == kind]
            if kind == "best":  # the largest move first
                found.sort(key=lambda one: (-abs((one.after or 0) - (one.before or 0)), one.nn, str(one.dataset)))
            if found:
                more = [f"- and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
                lines += [f"## {words[0].upper()}{words[1:]}", "", *map(_describe, found[:_SHOWN]), *more, ""]
        return "\n".join(lines).rstrip() + "\n"


def _describe(change: Change) -> str:
    text = f"- {code_span(change.nn)}" + (f", before {code_span(change.other)}" if change.other else "")
    if change.change == "runs":
        text += f": {plural(int(change.after or 0), 'result')} more, {int(change.before or 0):,} gone"
    if change.change == "best":
        of = ", ".join(filter(None, (change.task, change.dataset, change.metric)))
        text += f" ({of}): {change.before or 0:.4f} → {change.after or 0:.4f}"
    return text


@dataclass
class _Side:
    """One of the two. Codes are named by SHA-256, graphs by their identity."""

    name: str
    codes: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by network
    graphs: dict[str, str] = field(default_factory=dict)  # by code
    runs: defaultdict[str, Counter[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(Counter))  # by network

    def names(self) -> dict[str, list[str]]:
        """Return the networks of each code, sorted."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(self.codes):
            for code in self.codes[name]:
                found[code].append(name)
        return found


def diff(before: PathLike, after: PathLike, *, progress: bool = False) -> Difference:
    """Compare two corpora or snapshots, network by network.

    A network is its name; one that was renamed keeps its results. `recomputed` needs two snapshots with graphs.

    Args:
        before: a snapshot, or a source of records such as `lemur@2.0.6`.
        after: another one.
        progress: show progress on stderr.

    Returns:
        Changes of names, codes and results; `counts()`, `to_json()` and `to_markdown()` state them.

    Raises:
        UserError: if one of them cannot be read.

    Example:
        ```python
        from lemur import diff

        difference = diff("snapshot", "snapshot")
        assert not difference.changes
        ```
    """
    with hide_progress(unless=progress):
        old, new = (_read(os.fspath(spec)) for spec in (before, after))
    old_names = old.names()
    old_graphs: dict[str, str] = {}  # the first network of each graph
    for name in sorted(old.codes):
        for code in old.codes[name] & old.graphs.keys():
            old_graphs.setdefault(old.graphs[code], name)
    changes: list[Change] = []
    former = {name: name for name in new.codes.keys() & old.codes.keys()}  # names in BEFORE, also of what was renamed
    renamed: set[str] = set()
    for name in sorted(new.codes):
        codes = new.codes[name]
        if name in former:
            changes += [Change("changed", name)] if codes != old.codes[name] else []
            continue
        known = sorted({one for code in codes for one in old_names.get(code, ())})
        # Of several old names, each is renamed before one is named twice.
        lost = sorted((one for one in known if one not in new.codes), key=lambda one: one in renamed)
        same = [old_graphs[graph] for code in sorted(codes) if (graph := new.graphs.get(code)) in old_graphs]
        if lost:
            former[name] = lost[0]
            renamed.add(lost[0])
        kind = "renamed" if lost else "copied" if known else "recomputed" if same else "new"
        changes.append(Change(kind, name, next(iter([*lost, *known, *same]), None)))
    changes += [Change("gone", name) for name in old.codes.keys() - new.codes.keys() - renamed]
    for name, other in former.items():  # all results of any other network are new
        changes += _compare_results(name, other if other != name else None, old.runs[other], new.runs[name])
    prefixes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    found = [("before", name) for name in old.codes] + [("after", name) for name in new.codes]
    for column, name in found + [(change.change, change.nn) for change in changes]:
        prefixes[get_prefix(name)][column] += 1
    changes.sort(key=lambda one: (list(KINDS).index(one.change), one.nn, *map(str, one[2:6])))
    totals = {
        "networks": (len(old.codes), len(new.codes)),
        "distinct codes": (len(old_names), len(new.names())),
        "results": (sum(map(Counter.total, old.runs.values())), sum(map(Counter.total, new.runs.values()))),
    }
    by_name = {name: dict(prefixes[name]) for name in sorted(prefixes)}
    return Difference(old.name, new.name, totals, by_name, tuple(changes))


def _compare_results(
    name: str, other: str | None, before: Counter[tuple[Any, ...]], after: Counter[tuple[Any, ...]]
) -> Iterator[Change]:
    gone, come = (before - after).total(), (after - before).total()
    if gone or come:
        yield Change("runs", name, other, before=gone, after=come)
    best_before, best = _find_best(before), _find_best(after)
    for setting in best.keys() & best_before.keys():
        if best[setting] != best_before[setting]:
            yield Change("best", name, other, *setting, best_before[setting], best[setting])


def _find_best(runs: Iterable[tuple[Any, ...]]) -> dict[tuple[str | None, str | None, str | None], float]:
    """Return the highest accuracy of a network by task, dataset and metric."""
    best: dict[tuple[str | None, str | None, str | None], float] = {}
    for task, dataset, metric, _, accuracy, *_ in runs:
        if accuracy is not None:
            best[task, dataset, metric] = max(accuracy, best.get((task, dataset, metric), accuracy))
    return best


def _read_run(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return a result so that the order of its hyperparameters makes no difference."""
    *run, prm = values
    with contextlib.suppress(ValueError, RecursionError, TypeError):
        prm = json.dumps(json.loads(prm), sort_keys=True)
    return (*run, prm)


def _read(spec: str) -> _Side:
    """Read a source, or all networks of a snapshot, kept or not."""
    folder = Path(spec)
    if (folder / FILE_NAME).is_file() and read_manifest(folder).kind == SNAPSHOT.name:
        side = _Side(folder.resolve().name)
        with SNAPSHOT.reading(folder):
            for row in SNAPSHOT.rows(folder, NetworkRow, ("id", "names", "graph")):
                for name in row.names:
                    side.codes[name].add(row.id)
                if row.graph:
                    side.graphs[row.id] = row.graph
            for stat in SNAPSHOT.rows(folder, Stat, ("id", "nn", *_RUN)):
                side.runs[stat.nn][_read_run([getattr(stat, column) for column in _RUN])] += 1
        return side
    source = open_source(spec)
    side = _Side(source.name)
    for batch, codes, places in source.coded_batches():
        columns = (batch.column(column).to_pylist() for column in ("nn", *_RUN))
        for place, name, *run in zip(places.tolist(), *columns, strict=True):
            if place < len(codes):
                side.codes[name].add(codes[place][0].hex())
                side.runs[name][_read_run(run)] += 1
    side.name = source.name  # with the version, which a service states when it is read
    return side
