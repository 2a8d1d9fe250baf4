"""The steps of a curation in tasks, each a function of the work folder, a rank and the number of tasks.

Candidate pairs come from keys, as in a database join: two codes that may be near each other share a band of their
signatures, an element of their fingerprints' prefixes, or their syntax tree. Each task then decides its own codes with
the same indexes as the in-process way, over its own codes and those that share a key or a known graph with them.

Rounds are grouped into passes, numbered from 1: if survivors are traced, the next pass knows their graphs, until no
new ones appear.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curate.cluster.work import BANDING, GRAPHS, KEPT, NUMBERS, OPEN, REMOVED, SOURCE, StoredRows, Work
from curate.compute.behavior import find_candidates
from curate.compute.graphs import GraphTrace, NetworkTracer, differ_test, get_computations
from curate.model.corpus import CodeFile, fill_store, read_corpus
from curate.model.features import FeatureStore
from curate.model.records import build_records
from curate.published.delta import open_baseline
from curate.run.pipeline import curate
from curate.run.strict import Precomputed, choose_banding, empty_kept_set
from curate.sources.rows import ROW_SCHEMA, RecordSource
from lemur_core.files import Json
from lemur_core.files.atomic import make_scratch
from lemur_core.files.errors import NoSandboxError, UserError
from lemur_core.similarity.index import element_frequency, prefix, rarest_first
from lemur_core.similarity.minhash import IntArray, band_keys
from lemur_core.similarity.selection import KeptSet, find_kept, find_removed, find_verdicts, select

_CODES = pa.schema([("id", pa.binary(32)), ("code", pa.large_string())])
_RECORD_COLUMNS = ("task", "dataset", "prm")


def store_rows(work: Work, source: RecordSource, digests: Mapping[str, str], _rank: int, _tasks: int) -> None:
    """Read the source once: store its rows unchanged, and its codes by range of their ids.

    Raises: UserError if the source has no longer these digests afterwards: the rows may be of two states of it.
    """
    names = [work.name("codes", part) for part in range(work.parts)]
    writers = [pq.ParquetWriter(work.files.path(name), _CODES, compression="zstd") for name in names]
    try:
        with pq.ParquetWriter(work.files.path(work.name("rows", 0)), ROW_SCHEMA, compression="zstd") as rows:
            for batch in source.batches():
                rows.write_batch(batch)
                codes = batch.column("nn_code").unique().drop_null()
                ids = [hashlib.sha256(code.encode()).digest() for code in codes.to_pylist()]
                parts, table = work.assign_parts(ids), pa.table([ids, codes], schema=_CODES)
                for part in np.unique(parts).tolist():
                    writers[part].write_table(table.take(np.flatnonzero(parts == part)))
    finally:
        for writer in writers:
            writer.close()
    if source.digests() != digests:
        raise UserError(f"{source.where}: has changed while it was read; run again")
    work.files.put(work.name("rows", 0), *names)
    description = {
        "name": source.name,
        "where": source.where,
        "inputs": [item.model_dump() for item in source.inputs()],
        "files": [str(file.absolute()) for file in source.files()],
        "license": source.license(work.options.license),
    }
    work.files.write_text(SOURCE, json.dumps(description))


def work_out_features(work: Work, rank: int, _tasks: int) -> None:
    """Compute the features of a range of codes; new ones are added to the user's cache, too."""
    path = work.there("codes", rank)
    own = dict.fromkeys(pq.read_table(path, columns=["id"])["id"].to_pylist())
    store = FeatureStore(work.options.tokens, only=own)
    new = {id_ for id_ in own if id_ not in store}

    def codes() -> Iterator[tuple[bytes, str]]:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                for row in file.read_row_group(group).to_pylist():
                    if row["id"] in new:
                        new.remove(row["id"])
                        yield row["id"], row["code"]

    fill_store(store, codes(), work.options.tokens, 1)
    name = work.name("features", rank)
    store.export(list(own), work.files.path(name))
    work.files.put(name, str(Path(name).with_suffix(".shingles")))


def rank_records(work: Work, _rank: int, _tasks: int) -> None:
    """Rank the records best first, and compute the bands that miss none of their pairs and the frequency of elements.

    A delta leaves out the duplicates of published records, as far as they are known before networks are traced.
    """
    with (
        make_scratch(work.files.here, "records") as scratch,
        CodeFile(Path(scratch) / "codes") as codes,
    ):
        corpus = read_corpus(StoredRows(work), codes, work.options.tokens, 1, work.features())
    records = build_records(corpus, work.options)
    banding = choose_banding(corpus, records, work.options)
    work.files.write_text(BANDING, json.dumps({"bands": banding.bands, "rows": banding.rows}))
    frequency = element_frequency(corpus.features.elements)
    elements = [np.fromiter(frequency.keys(), np.uint64), np.fromiter(frequency.values(), np.int64)]
    work.write(pa.table(elements, ["element", "fingerprints"]), "elements")
    order = records.order
    if work.against:
        against = open_baseline(work.against, corpus, work.options, 1)
        first = work.options.graphs in ("off", "survivors")
        verdicts = against.verdicts(order, lambda _: None) if first else against.equal
        order = [code for code in order if code not in verdicts]
    shown = corpus.rows.take(pa.array([records.representatives[code] for code in order], pa.int64())).select(
        list(_RECORD_COLUMNS)
    )
    ids = pa.array([bytes.fromhex(corpus.ids[code]) for code in order], pa.binary(32))
    work.write(shown.add_column(0, "id", ids), "order")


def trace_graphs(work: Work, at: int, rank: int, _tasks: int) -> None:
    """Trace the task's own codes that a pass has kept, or all of them before the first pass (0).

    Traces nothing if no sandbox is available and graphs were not requested explicitly.
    """
    places = work.own(rank)
    if at:
        places = places[work.read_decisions(work.last_pass(at))[places] == KEPT]
        places = np.setdiff1d(places, np.fromiter(work.read_traces(at), np.int64))
    records, code_of = _read_networks(work, rank, places)
    traces: dict[int, GraphTrace] = {}
    try:
        with NetworkTracer(jobs=1, **work.options.in_sandbox) as tracer:
            traces = tracer.trace_records(records, code_of)
    except NoSandboxError:
        if work.options.graph is not None:
            raise
    columns = [name for name in GRAPHS.names if name not in ("place", "answer")]
    rows: list[Json] = [
        {name: trace.answer.get(name) for name in columns} | {"place": place, "answer": json.dumps(dict(trace.answer))}
        for place, trace in sorted(traces.items())
    ]
    work.write(pa.Table.from_pylist(rows, GRAPHS), "graphs", at, rank)


def measure_behaviors(work: Work, at: int, rank: int, _tasks: int) -> None:
    """Measure the task's own codes that may compute what another code does, now that a pass has traced more."""
    traces = work.read_traces(at + 1, measured=at)
    candidates = find_candidates({place: trace.answer for place, trace in traces.items()})
    places = np.intersect1d(work.own(rank), np.array(candidates, np.int64))
    records, code_of = _read_networks(work, rank, places)
    own = {place: GraphTrace(answer) for place, answer in work.own_answers(at, rank) if place in records}
    behaviors: dict[int, str | None] = {}
    if own:
        with NetworkTracer(jobs=1, **work.options.in_sandbox) as tracer:
            behaviors = dict(tracer.measure_records(records, own, code_of))
    rows = [{"place": place, "behavior": behavior} for place, behavior in sorted(behaviors.items())]
    work.write(pa.Table.from_pylist(rows, NUMBERS), "numbers", at, rank)


def _read_networks(work: Work, rank: int, places: IntArray) -> tuple[dict[int, Json], Callable[[int], str]]:
    """Return the facts about the networks at these places of the task, and a function that returns their codes."""
    shown = work.read("order").take(places)
    records = dict(zip(places.tolist(), shown.select(list(_RECORD_COLUMNS)).to_pylist(), strict=True))
    wanted = set(shown["id"].to_pylist())
    codes: dict[bytes, str] = {}
    with pq.ParquetFile(work.there("codes", rank)) as file:
        for group in range(file.num_row_groups):
            codes |= {row["id"]: row["code"] for row in file.read_row_group(group).to_pylist() if row["id"] in wanted}
    return records, lambda place: codes[work.ids[place]]


def write_keys(work: Work, rank: int, tasks: int) -> None:
    """Write the keys of the task's own codes, by range of keys."""
    own = work.own(rank)
    table = work.read_features(own)
    elements = work.read("elements")
    frequency = dict(zip(elements["element"].to_pylist(), elements["fingerprints"].to_pylist(), strict=True))
    of_tree = [int.from_bytes(digest[:8], "little") for digest in table.digests("tree")]
    of_structure = [prefix(rarest_first(elements, frequency), work.options.structural) for elements in table.elements]
    of_set = band_keys(table.signatures, work.banding).tolist()
    keys: list[int] = []
    places: list[int] = []
    for code, place in enumerate(own.tolist()):
        code_keys = [
            of_tree[table.tree[code]],
            *of_set[table.shingle_set[code]],
            *of_structure[table.fingerprint[code]],
        ]
        keys += code_keys
        places += [place] * len(code_keys)
    key = np.array(keys, np.uint64)
    # The high half of a key tells its range, as that of an id does: keys are uniform, so the ranges are even.
    part = (key >> np.uint64(32)) * np.uint64(tasks) >> np.uint64(32)
    shared = pa.table([key, np.array(places, np.int64)], ["key", "place"])
    for number in range(tasks):
        work.write(shared.take(np.flatnonzero(part == number)), "keys", number, rank)


def join_keys(work: Work, rank: int, tasks: int) -> None:
    """For a range of keys, find the better places that share one with a place of each range of ids."""
    import duckdb

    with make_scratch(work.files.here, "links") as scratch:
        database = duckdb.connect(config={"temp_directory": scratch, "threads": 1, "memory_limit": "2GB"})
        database.register("part", pa.table({"place": np.arange(len(work.ids)), "owner": work.assign_parts(work.ids)}))
        links = database.sql(
            """
            WITH held AS (SELECT key, place, owner FROM read_parquet(?) JOIN part USING (place)),
                 asked AS (SELECT key, owner, max(place) AS last FROM held GROUP BY key, owner)
            SELECT DISTINCT asked.owner AS owner, held.place AS place FROM asked JOIN held USING (key)
            WHERE held.owner <> asked.owner AND held.place < asked.last ORDER BY owner, place
            """,
            params=[[str(path) for path in work.all_there("keys", rank)]],
        ).to_arrow_table()
        database.close()
    owner = links["owner"].to_numpy()
    for number in range(tasks):
        work.write(links.select(["place"]).take(np.flatnonzero(owner == number)), "links", number, rank)


def decide_round(work: Work, at: int, number: int, rank: int, _tasks: int) -> None:
    """Decide a round: even ones keep codes near no better open code, odd ones remove codes near one just kept."""
    if work.last_pass(at) < at:
        return
    own = work.own(rank)
    states, earlier = work.states(at, number), work.states(at, number - 1) if number else None
    linked = _find_linked_places(work, at, rank)
    mine = own[states[own] == OPEN]
    if earlier is None or number % 2 == 0:
        seen = np.union1d(mine, linked[states[linked] == OPEN])
        decided = find_kept(
            range(len(seen)), set(np.searchsorted(seen, mine).tolist()), _empty_kept_set(work, at, seen)
        )
        _write_decided(work, at, number, rank, seen[decided], KEPT)
        return
    fresh = np.flatnonzero((states == KEPT) & (earlier != KEPT))
    fresh = np.intersect1d(fresh, np.union1d(own, linked))
    seen = np.union1d(mine, fresh)
    decided = find_removed(
        range(len(seen)), set(np.searchsorted(seen, fresh).tolist()), _empty_kept_set(work, at, seen)
    )
    _write_decided(work, at, number, rank, seen[decided], REMOVED)


def finish(work: Work, at: int, rounds: int, _rank: int, _tasks: int) -> None:
    """Decide the codes that the rounds of a pass left open, one after the other, among the kept and open ones."""
    if work.last_pass(at) < at:
        return
    states = work.states(at, rounds)
    if (states == OPEN).any():
        seen = np.flatnonzero(states != REMOVED)
        verdicts = select(range(len(seen)), _empty_kept_set(work, at, seen))
        states[seen] = [KEPT if verdicts[code].kept else REMOVED for code in range(len(seen))]
    work.write(pa.table([states], ["state"]), "states", at)


def find_witnesses(work: Work, passes: int, rank: int, _tasks: int) -> None:
    """Find why each of the task's own codes is kept or removed."""
    at = work.last_pass(passes)
    own, linked = work.own(rank), _find_linked_places(work, at, rank)
    states = work.read_decisions(at)
    seen = np.union1d(own, linked[states[linked] == KEPT])
    verdicts = find_verdicts(
        range(len(seen)), set(np.flatnonzero(states[seen] == KEPT).tolist()), _empty_kept_set(work, at, seen)
    )
    mine = [(int(seen[code]), verdicts[code]) for code in np.searchsorted(seen, own).tolist()]
    rows = [
        {
            "place": place,
            "stage": verdict.stage,
            "canonical": int(seen[verdict.canonical]),
            "similarity": verdict.similarity,
        }
        for place, verdict in mine
        if verdict.canonical is not None
    ]
    work.write(pa.Table.from_pylist(rows, _VERDICTS), "verdicts", rank)


def write_snapshot(work: Work, passes: int, out: Path, force: bool, _rank: int, _tasks: int) -> None:
    """Write the snapshot in the in-process way, with the precomputed results."""
    verdicts = work.read_all("verdicts").sort_by("place") if passes else _VERDICTS.empty_table()
    known = {work.ids[place].hex() for place in work.read_traces(work.last_pass(passes))}
    precomputed = Precomputed(work.features, work.ids if passes else [], verdicts, known, work.answers(passes))
    curate(
        StoredRows(work),
        out,
        work.options,
        against=work.against,
        origins=work.origins,
        force=force,
        precomputed=precomputed,
    )


def count_open(work: Work, at: int, rounds: int) -> int:
    """Count the codes that are open after some rounds of a pass."""
    return int(np.count_nonzero(work.states(at, rounds) == OPEN))


_DECIDED = ["place", "state"]
_VERDICTS = pa.schema(
    [("place", pa.int64()), ("stage", pa.string()), ("canonical", pa.int64()), ("similarity", pa.float64())]
)


def _write_decided(work: Work, at: int, number: int, rank: int, places: IntArray, state: int) -> None:
    work.write(pa.table([places, np.full(len(places), state, np.uint8)], _DECIDED), "rounds", at, number, rank)


def _find_linked_places(work: Work, at: int, rank: int) -> IntArray:
    """Return the places that may be near own ones, ascending."""
    graphs = get_computations(work.read_traces(at))
    mine = {graphs[place] for place in work.own(rank).tolist() if place in graphs}
    twins = [place for place, graph in graphs.items() if graph in mine]
    return np.union1d(work.read_all("links", rank)["place"].to_numpy().astype(np.int64), np.array(twins, np.int64))


def _empty_kept_set(work: Work, at: int, seen: IntArray) -> KeptSet:
    """Return an empty kept set for some places in a pass; codes are numbered by their order in `seen`."""
    traced = work.read_traces(at)
    all_computations = get_computations(traced)  # the numbers of one code may determine the computation of another
    places = [(code, place) for code, place in enumerate(seen.tolist()) if place in traced]
    known = {code: traced[place] for code, place in places}
    computations = {code: all_computations[place] for code, place in places if place in all_computations}
    return empty_kept_set(
        work.read_features(seen),
        work.options,
        work.banding,
        computations,
        differ_test(known, work.options.graphs),
    )
