"""The page of a snapshot: from rows to records, splits and leaks, and each record with its duplicates."""

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.folder.explain import RECORD_FIELDS
from curate.folder.report import overview
from curate.model.rights import is_withheld
from curate.published.outcome import AGREEMENTS
from lemur_core.describe.facts import Facts
from lemur_core.describe.picture import Box, boxes
from lemur_core.files.markdown import count, plural, ratio
from lemur_core.graphs.graph import Graph
from manifests.folders import frame
from manifests.folders.kinds import SNAPSHOT, list_fields
from manifests.folders.manifest import Manifest
from manifests.folders.tables import as_records, read_table
from manifests.records import Decision, GraphRow, LemurRecord, NetworkRow, Stat

#: Graphs with more nodes than this are drawn with several operations in one box.
_BOXES = 40
#: At most so many records are listed, and so many removed codes are compared.
_RECORDS, _REMOVED = 5_000, 20_000
#: Limits of compared codes per record, tried in this order until all fit.
_MOST = (10_000, 3_000, 1_000, 300, 100, 30, 10, 3, 1)

#: The sizes of a network that results are compared over.
_SIZES = ("parameters", "multiply-adds")
#: Task, data set and metric, and the distinct results of a record there.
_ResultRows = Sequence[tuple[str, str, str, Sequence[tuple[int | None, float]]]]

#: The columns of `networks.parquet` that say what became of a code.
_COLUMNS = ("id", "nn", "kept", "stage", "canonical", "similarity")
_RECORD_COLUMNS = tuple(name for name in LemurRecord.model_fields if name not in ("nn_code", "prm", "duration"))


def snapshot_page(folder: Path, manifest: Manifest) -> frame.Page:
    """Build the page of a snapshot from some columns of its tables, and from whole rows only of the listed records."""
    networks = read_table(SNAPSHOT.files(folder, "networks"), NetworkRow, _COLUMNS)
    records = read_table(SNAPSHOT.files(folder, "records"), LemurRecord, ("id",))
    removed = networks.filter(pc.and_(pc.invert(networks["kept"]), pc.is_valid(networks["canonical"])))
    listed = _choose_records(folder, records, removed)
    duplicates = _choose_duplicates(removed, listed)
    wanted = {row.id for row in listed}
    results, sizes = _read_results(folder, wanted), _read_sizes(folder, wanted)
    library = frame.EntryLibrary(
        title="Records",
        noun="records",
        facets=("split", "prefix", "family", "graph", "pretrained"),
        numbers=("represents", "score", *_SIZES),
        entries=[_make_entry(row, *duplicates[row.id], sizes.get(row.id, (None, None))) for row in listed],
        views=_list_views(folder, listed, duplicates, results, str(manifest.details.get("license"))),
        total=records.num_rows,
        elsewhere="data/records",
        order="represents",
        by="represents",
        sizes=_SIZES,
        results=_list_benchmarks(listed, results),
    )
    page = overview(folder, manifest.parameters, manifest.counts, manifest.details)
    about = [
        ("license", manifest.details.get("license")),
        ("made with", f"lemur-curator {manifest.versions.get('lemur-curator')}"),
        ("in words", [frame.link("report.md", "report.md"), frame.link("manifest.json", "manifest.json")]),
    ]
    lead = f"{page.lead} Click a record to compare it with the codes that it represents."
    return replace(page, lead=lead, views=[frame.facts("Overview", about), *page.views], library=library)


def _count_values(column: pa.ChunkedArray) -> tuple[list[str], list[int]]:
    """Return the distinct values of a column and their counts."""
    counts = pc.value_counts(column)
    return counts.field("values").to_pylist(), counts.field("counts").to_pylist()


# -- records ------------------------------------------------------------------------------------------------------


def _choose_records(folder: Path, records: pa.Table, removed: pa.Table) -> list[LemurRecord]:
    """Return the whole rows of the records with the most duplicates, similar texts next to each other."""
    numbers = np.zeros(records.num_rows, int)
    ids = records["id"].combine_chunks()
    counts = pc.value_counts(removed["canonical"])
    indices = pc.index_in(counts.field("values"), value_set=ids)
    numbers[indices.to_numpy()] = counts.field("counts").to_numpy()
    order = np.lexsort((pc.rank(ids).to_numpy(), -numbers))[:_RECORDS]
    chosen = set(ids.take(pa.array(order)).to_pylist())
    rows = SNAPSHOT.rows(folder, LemurRecord, _RECORD_COLUMNS, ids=chosen)
    return sorted(rows, key=lambda row: (row.prefix, row.cluster, row.nn, row.id))


def _choose_duplicates(removed: pa.Table, listed: Sequence[LemurRecord]) -> dict[str, tuple[int, list[NetworkRow]]]:
    """Return for each record the number of its duplicates, and those to compare: all, unless there are too many."""
    duplicates = removed.filter(
        pc.is_in(removed["canonical"], value_set=pa.array([row.id for row in listed], pa.string()))
    )
    numbers = Counter(dict(zip(*_count_values(duplicates["canonical"]), strict=True)))
    # The largest limit per record with which all of them fit.
    limit = next(n for n in (*_MOST, 0) if sum(min(number, n) for number in numbers.values()) <= _REMOVED)
    by = [("canonical", "ascending"), ("similarity", "descending"), ("nn", "ascending"), ("id", "ascending")]
    duplicates = duplicates.sort_by(by)
    groups = duplicates["canonical"].combine_chunks().dictionary_encode().indices.to_numpy()
    rank = np.arange(len(groups)) - np.searchsorted(groups, groups)  # within its group
    chosen: dict[str, list[NetworkRow]] = {row.id: [] for row in listed}
    for row in as_records(duplicates.filter(pa.array(rank < limit)), NetworkRow):
        chosen[row.canonical or ""].append(row)
    return {name: (numbers[name], rows) for name, rows in chosen.items()}


def _read_sizes(folder: Path, wanted: set[str]) -> dict[str, tuple[int | None, int | None]]:
    """Return parameters and multiply-adds of some codes, of those whose graphs were traced."""
    columns = ("id", "parameters", "multiply_adds")
    return {
        row.id: (row.parameters, row.multiply_adds) for row in SNAPSHOT.rows(folder, NetworkRow, columns, ids=wanted)
    }


def _make_entry(
    row: LemurRecord, number: int, removed: Sequence[NetworkRow], sizes: tuple[int | None, int | None]
) -> frame.Entry:
    return frame.Entry(
        name=row.nn or row.id[:16],
        note=f"{row.family}, {row.split}",
        facets=(
            row.split,
            row.prefix,
            row.family,
            "known" if row.graph else "not known",
            "pretrained" if row.pretrained else "from scratch",
        ),
        numbers=(number, None if row.score is None else round(row.score, 4), *sizes),
        further=tuple(duplicate.nn or duplicate.id[:16] for duplicate in removed),
    )


def _list_views(
    folder: Path,
    listed: Sequence[LemurRecord],
    duplicates: Mapping[str, tuple[int, list[NetworkRow]]],
    results: Mapping[str, _ResultRows],
    shared: str,
) -> Iterator[list[frame.View]]:
    """Yield the views of each record, without code that may not be published. Args: shared: license of the folder."""
    wanted = {row.id for row in listed}
    others = {duplicate.id for _, removed in duplicates.values() for duplicate in removed}
    columns = ("id", "nn_code", "license")
    texts = _pack_codes(SNAPSHOT.rows(folder, LemurRecord, columns, ids=wanted), shared)
    texts |= _pack_codes(SNAPSHOT.rows(folder, NetworkRow, columns, ids=others), shared)
    graphs, agreements = _read_graphs(folder, wanted & texts.keys()), _read_agreements(folder)
    for row in listed:
        number, removed = duplicates[row.id]
        text = _unpack(texts, row.id)
        views = [frame.facts("Record", [("id", row.id), *list_fields(row, RECORD_FIELDS)])]
        if row.id in results:
            views.append(frame.results("Results", results[row.id], "All results by data set, without repeats."))
        if row.id in graphs:
            described, drawn = graphs[row.id]
            if described:
                views.append(
                    frame.operations("What it computes", described, "From its graph, without names of its source.")
                )
        if removed:
            some = f"; {count(len(removed))} of them here, all in networks.parquet" if len(removed) < number else ""
            intro = (
                f"{plural(number, 'code')} removed as duplicates of it, the most similar first{some}."
                " Left: the kept code; right: the removed one."
            )
            compared = [(_describe_removal(one, agreements.get(one.id)), _unpack(texts, one.id)) for one in removed]
            views.append(frame.versions("Represents", text, compared, intro))
        views += [*([frame.graph("Graph", drawn)] if row.id in graphs else []), frame.code("Code", text)]
        yield views


def _read_results(folder: Path, wanted: set[str]) -> dict[str, _ResultRows]:
    """Return the distinct results of some records by task, data set and metric, as pairs of epochs and value."""
    values: dict[str, dict[tuple[str, str, str], set[tuple[int | None, float]]]] = {}
    for row in SNAPSHOT.rows(folder, Stat, ("id", "task", "dataset", "metric", "epoch", "accuracy"), ids=wanted):
        if row.accuracy is not None:
            key = row.task or "", row.dataset or "", row.metric or ""
            values.setdefault(row.id, {}).setdefault(key, set()).add((row.epoch, round(row.accuracy, 4)))
    return {
        id_: [(*key, sorted(of_key, key=lambda pair: (pair[0] or 0, pair[1]))) for key, of_key in sorted(of_id.items())]
        for id_, of_id in values.items()
    }


def _list_benchmarks(listed: Sequence[LemurRecord], results: Mapping[str, _ResultRows]) -> frame.Results:
    """Return the same results by benchmark, and by the number of the entry."""
    benchmarks: dict[tuple[str, str, str], dict[int, Sequence[tuple[int | None, float]]]] = {}
    for number, row in enumerate(listed):
        for task, dataset, metric, pairs in results.get(row.id, ()):
            benchmarks.setdefault((task, dataset, metric), {})[number] = pairs
    return benchmarks


def _read_agreements(folder: Path) -> dict[str, str]:
    """Return how the graphs of removed codes compare with those of their canonical records."""
    rows = read_table([folder / "decisions.parquet"], Decision, ("id", "agreement"))
    known = rows.filter(pc.is_valid(rows["agreement"]))
    return dict(zip(known["id"].to_pylist(), known["agreement"].to_pylist(), strict=True))


def _describe_removal(row: NetworkRow, agreement: str | None) -> str:
    similarity = "" if row.similarity is None else f" {ratio(row.similarity)}"
    agrees = AGREEMENTS.get(agreement or "")
    return f"{row.stage}{similarity}{f', {agrees}' if agrees else ''}"


def _pack_codes(rows: Iterable[LemurRecord | NetworkRow], shared: str) -> dict[str, bytes]:
    """Return the publishable codes of some rows by id, compressed because there may be many."""
    return {
        row.id: zlib.compress(row.nn_code.encode("utf-8", "surrogatepass"), 1)
        for row in rows
        if not is_withheld(row.license or shared, shared)
    }


def _unpack(texts: Mapping[str, bytes], digest: str) -> str:
    return zlib.decompress(texts[digest]).decode("utf-8", "surrogatepass") if digest in texts else ""


def _read_graphs(folder: Path, wanted: set[str]) -> dict[str, tuple[Sequence[str], list[Box]]]:
    """Return sentences on some codes, and their drawn graphs of eval mode; none if another torch recorded them."""
    described: dict[str, tuple[Sequence[str], list[Box]]] = {}
    for row in SNAPSHOT.rows(folder, GraphRow, ("id", "eval"), ids=wanted):
        if row.eval:
            try:
                recorded = Graph.from_json(json.loads(row.eval))
                described[row.id] = Facts(recorded).list_operations(), boxes(recorded, _BOXES)
            except ValueError:  # recorded by another release of torch
                return {}
    return described
