"""`lemur curate --executor`: features and graphs in the tasks of an executor; the same decisions and bytes as without.

A pass begins with the selection of one process (`choose`), as far as the graphs of earlier passes decide it: what it
would trace is traced in tasks, until nothing is left. The last step (`write`) curates as one process does, with the
features and the graphs of the tasks.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curate.compute.behavior import find_candidates
from curate.compute.graphs import GraphTrace, GraphTracer, NetworkTracer
from curate.model.corpus import CodeFile, fill_store, read_corpus
from curate.model.features import FeatureStore
from curate.model.options import CurateOptions
from curate.model.rights import check_origins
from curate.published.delta import open_baseline, refuse_conflicts
from curate.run.pipeline import curate, describe_options
from curate.run.strict import curate_strict
from curate.run.work import CHOSEN, CODES, GRAPHS, NUMBERS, SOURCE, StoredRows, Work, step_name
from curate.sources.rows import ROW_SCHEMA, RecordSource
from lemur_core.distributed.exchange import (
    Exchange,
    Step,
    begin,
    check_memory,
    forget,
    is_done,
    number_step,
    run_part,
)
from lemur_core.distributed.executors import run_steps
from lemur_core.files import Json
from lemur_core.files.atomic import make_scratch, sha256_file
from lemur_core.files.errors import NoSandboxError, UsageError, UserError
from manifests.folders.manifest import FILE_NAME, Manifest, package_versions, read_manifest
from manifests.folders.tables import iterate_rows
from manifests.options import DistributedOptions

#: Passes to queue when survivors are traced; the step `write` traces the rest.
QUEUED_PASSES = 2

#: The kinds of steps of a curation, in their order.
STEP_KINDS = ("features", "choose", "graphs", "numbers", "write")


def curate_in_tasks(
    source: RecordSource,
    names: list[str],
    out: Path,
    options: CurateOptions,
    distributed: DistributedOptions,
    *,
    against: Sequence[Path] = (),
    origins: Sequence[Path] = (),
    force: bool = False,
) -> Manifest | None:
    """Curate a source into the folder `out` by tasks of an executor; the tables are the same as with `curate`.

    Args:
        names: names of the source, as requested.
        distributed: the executor and how it divides the codes; an interrupted run resumes from its work folder.
        against: finished snapshots and deltas that all tasks can read; `out` becomes a delta to them.
        origins: extractions that the last task can read.

    Returns: the manifest; None if jobs were queued.
    Raises: UserError for bad input, a task that fails or was killed, or a work folder of another run.
    """
    if options.profile != "strict":
        raise UsageError("--executor: only profile strict is divided among tasks; leave it out or switch")
    refuse_conflicts(against, options, None)
    repositories = check_origins(origins)
    executor, tasks, workers, work = distributed.resolve(out)
    out, *seen = (Path(os.path.abspath(path)) for path in (out, *against, *origins))  # noqa: PTH100
    parents = seen[: len(against)]
    plan = Work(Exchange(work), options, tasks, tuple(parents), tuple(seen[len(against) :]))
    check_memory(dict(distributed.memory), STEP_KINDS)
    with plan.files.hold():
        digests = source.digests()
        request = {"sources": names, "inputs": digests, "options": describe_options(options), "tasks": tasks}
        request |= {"versions": package_versions()}
        request |= {"origins": [parent.sha256 for parent in repositories]} if repositories else {}
        begin(plan.files, request | {"against": [sha256_file(parent / FILE_NAME) for parent in parents]})
        read = source_step(plan, source, digests)
        if not is_done(read, 0):
            number_step(read, 0)
            run_part(read, 0)
        # Repeated in every run: its output is not in the work folder, and may have been removed.
        forget(plan.files, "write")
        steps = list_steps(plan, out, force, queued=executor == "slurm")
        jobs = run_steps(executor, steps, plan.files, workers, dict(distributed.memory))
    return read_manifest(out) if jobs is None else None


def source_step(plan: "Work", source: RecordSource, digests: Mapping[str, str]) -> Step:
    """Return the step that the command itself runs first: it reads the source, which must have these digests."""
    return _step(plan, "source", 1, store_rows, source, digests)


def list_steps(plan: "Work", out: Path, force: bool, *, queued: bool) -> Iterator[Step]:
    """Yield the steps in their order, each once the one before is done.

    Args: queued: before any has run, therefore with a fixed number of passes.
    """
    yield _step(plan, "features", plan.parts, compute_features)
    limit = 0 if plan.options.graphs == "off" else 1
    if plan.options.graphs == "survivors":
        limit = QUEUED_PASSES if queued else sys.maxsize
    passes = 0
    while passes < limit:
        yield _step(plan, step_name("choose", passes + 1), 1, choose_networks, passes + 1)
        if not queued and not plan.read("chosen", passes + 1).num_rows:
            break
        passes += 1
        yield _step(plan, step_name("graphs", passes), plan.parts, trace_graphs, passes)
        yield _step(plan, step_name("numbers", passes), plan.parts, measure_behaviors, passes)
        if not queued and not plan.read_answers(passes):  # no sandbox is available
            break
    yield _step(plan, "write", 1, write_snapshot, passes, out, force)


def _step(plan: "Work", name: str, tasks: int, run: Callable[..., None], *arguments: object) -> Step:
    return Step(name, tasks, partial(run, plan, *arguments), plan.files)


# --- the steps, each a function of the work folder, a rank and the number of tasks ------------------------------------


def store_rows(work: Work, source: RecordSource, digests: Mapping[str, str], _rank: int, _tasks: int) -> None:
    """Read the source once: store its rows unchanged, and its codes by range of their ids.

    Raises: UserError if the source has no longer these digests afterwards: the rows may be of two states of it.
    """
    names = [work.name("codes", part) for part in range(work.parts)]
    writers = [pq.ParquetWriter(work.files.path(name), CODES, compression="zstd") for name in names]
    try:
        with pq.ParquetWriter(work.files.path(work.name("rows", 0)), ROW_SCHEMA, compression="zstd") as rows:
            for batch in source.batches():
                rows.write_batch(batch)
                codes = batch.column("nn_code").unique().drop_null()
                ids = [hashlib.sha256(code.encode()).digest() for code in codes.to_pylist()]
                parts, table = work.assign_parts(ids), pa.table([ids, codes], schema=CODES)
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


def compute_features(work: Work, rank: int, _tasks: int) -> None:
    """Compute the features of a range of codes; new ones are added to the user's cache, too."""
    path = work.find("codes", rank)
    own = dict.fromkeys(pq.read_table(path, columns=["id"])["id"].to_pylist())
    store = FeatureStore(work.options.tokens, only=own)
    new = {id_ for id_ in own if id_ not in store}

    def codes() -> Iterator[tuple[bytes, str]]:
        for row in iterate_rows(path):
            if row["id"] in new:
                new.remove(row["id"])
                yield row["id"], row["code"]

    fill_store(store, codes(), work.options.tokens, 1)
    name = work.name("features", rank)
    store.export(list(own), work.files.path(name))
    work.files.put(name, str(Path(name).with_suffix(".shingles")))


class _UntracedError(Exception):
    """A selection needs the graphs of further networks: `records` by code, as for `NetworkTracer.trace_records`."""

    def __init__(self, records: Mapping[int, Json]) -> None:
        super().__init__(f"{len(records)} networks")
        self.records = records


class _StoredTracer(GraphTracer):
    """Knows the answers of the tasks alone, and runs nothing."""

    def trace_records(self, records: Mapping[int, Json], *_: object) -> dict[int, GraphTrace]:
        """Raise _UntracedError if there is anything to trace."""
        if records:
            raise _UntracedError(records)
        return {}

    def add_behaviors(self, traces: Mapping[int, GraphTrace], *_: object) -> dict[int, GraphTrace]:
        """Return the traces as they are: numbers are measured in tasks."""
        return dict(traces)


def choose_networks(work: Work, at: int, _rank: int, _tasks: int) -> None:
    """Select with the graphs of earlier passes, and write which networks that selection would trace next."""
    options = work.options
    with make_scratch(work.files.here, "choose") as scratch, CodeFile(Path(scratch) / "codes") as codes:
        corpus = read_corpus(StoredRows(work), codes, options.tokens, 1, work.open_features())
        answers = work.read_measured_answers(at - 1, whole=options.reads_graphs)
        against = open_baseline(work.against, corpus, options, 1) if work.against else None
        chosen: Mapping[int, Json] = {}
        try:
            with _StoredTracer(corpus, jobs=1, answers=answers, **options.in_sandbox) as tracer:
                # Whether networks run is tested by the last step, which traces what is missing then.
                curate_strict(corpus, replace(options, require_runs=False), None, tracer, against)
        except _UntracedError as error:
            chosen = error.records
    rows = [{**record, "id": bytes.fromhex(corpus.ids[code])} for code, record in chosen.items()]
    work.write(pa.Table.from_pylist(rows, CHOSEN), "chosen", at)


def trace_graphs(work: Work, at: int, rank: int, _tasks: int) -> None:
    """Trace the task's own networks of a pass; none if no sandbox is available and graphs were not requested."""
    own, code_of = work.read_networks(rank, [at])
    traces: dict[int, GraphTrace] = {}
    try:
        with NetworkTracer(jobs=1, **work.options.in_sandbox) as tracer:
            traces = tracer.trace_records(dict(enumerate(own)), code_of)
    except NoSandboxError:
        if work.options.graph is not None:
            raise
    rows = [
        {name: trace.answer.get(name) for name in GRAPHS.names}
        | {"id": own[place]["id"], "answer": json.dumps(dict(trace.answer))}
        for place, trace in sorted(traces.items())
    ]
    work.write(pa.Table.from_pylist(rows, GRAPHS), "graphs", at, rank)


def measure_behaviors(work: Work, at: int, rank: int, _tasks: int) -> None:
    """Measure the task's own networks that may compute what another one does, now that a pass has traced more."""
    answers = work.read_answers(at)
    for id_, answer in work.read_measured_answers(at - 1).items():
        answers[bytes.fromhex(id_)] = answer
    ids = list(answers)
    candidates = {ids[number] for number in find_candidates(dict(enumerate(answers.values())))}
    own, code_of = work.read_networks(rank, range(1, at + 1))
    own_answers = work.read_answers(at, rank=rank, whole=True)
    records = {place: row for place, row in enumerate(own) if row["id"] in candidates}
    traces = {place: GraphTrace(own_answers[row["id"]]) for place, row in records.items()}
    rows: list[Json] = []
    if records:
        with NetworkTracer(jobs=1, **work.options.in_sandbox) as tracer:
            measured = sorted(tracer.measure_records(records, traces, code_of))
        rows = [{"id": own[place]["id"], "behavior": behavior} for place, behavior in measured]
    work.write(pa.Table.from_pylist(rows, NUMBERS), "numbers", at, rank)


def write_snapshot(work: Work, passes: int, out: Path, force: bool, _rank: int, _tasks: int) -> None:
    """Write the snapshot as one process does, with the features and the graphs of the tasks."""
    curate(
        StoredRows(work),
        out,
        work.options,
        against=work.against,
        origins=work.origins,
        force=force,
        store=work.open_features(),
        answers=work.read_measured_answers(passes, whole=True),
    )
