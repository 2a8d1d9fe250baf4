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
from dataclasses import dataclass, replace
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
from curate.sources.rows import ROW_SCHEMA, RecordSource
from lemur_core.distributed.exchange import (
    Exchange,
    PartFile,
    Step,
    begin,
    check_memory,
    fetch_parts,
    forget,
    is_done,
    number_step,
    run_part,
)
from lemur_core.distributed.executors import run_steps
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_file, make_scratch, sha256_file
from lemur_core.files.errors import NoSandboxError, UsageError, UserError
from lemur_core.similarity.minhash import IntArray
from manifests.folders.manifest import FILE_NAME, Input, Manifest, package_versions, read_manifest
from manifests.folders.tables import iterate_rows
from manifests.options import DistributedOptions

# The files that the tasks of a curation exchange: Parquet by hash range of ids, in a folder or at an address.
# plan.json            the request
# source.json, rows/   what the source states about itself, and its rows as read
# codes/PART           the distinct codes of a range of ids
# features/PART        their features, as in the cache
# chosen/PASS          the networks to trace in a pass, with the arguments of their records
# graphs/PASS/PART     what they compute
# numbers/PASS/PART    the same in numbers, of those that may compute what another network does

SOURCE = "source.json"
CODES = pa.schema([("id", pa.binary(32)), ("code", pa.large_string())])
CHOSEN = pa.schema([("id", pa.binary(32)), *((name, pa.string()) for name in ("task", "dataset", "prm"))])
GRAPHS = pa.schema(
    [
        *(("id", pa.binary(32)), ("graph", pa.string()), ("graph_widths", pa.string()), ("weights", pa.string())),
        *(("varies", pa.list_(pa.string())), ("answer", pa.large_string())),
    ]
)
NUMBERS = pa.schema([("id", pa.binary(32)), ("behavior", pa.string())])


def step_name(kind: str, at: int) -> str:
    """Return the name of a pass's step."""
    return kind if at == 1 else f"pass-{at}-{kind}"


@dataclass(frozen=True)
class Work:
    """The folder of one run, divided into `parts` ranges of ids."""

    files: Exchange
    options: CurateOptions
    parts: int
    against: tuple[Path, ...] = ()  # for a delta: the folders that it extends
    origins: tuple[Path, ...] = ()  # extractions that codes may come from

    def assign_parts(self, ids: list[bytes]) -> IntArray:
        """Return the range that each id lies in, which is the rank of the task that owns it."""
        heads = np.array([int.from_bytes(id_[:4], "big") for id_ in ids], np.int64)
        return heads * self.parts >> 32

    def name(self, *names: str | int) -> str:
        """Return the name of a Parquet file; numbers are written with five digits."""
        return "/".join(f"{name:05d}" if isinstance(name, int) else name for name in names) + ".parquet"

    def write(self, table: pa.Table, *names: str | int) -> None:
        """Write a table atomically."""
        with atomic_file(self.files.path(name := self.name(*names))) as part:
            pq.write_table(table, part, compression="zstd")
        self.files.put(name)

    def find(self, *names: str | int) -> Path:
        """Return a file that a task has written, complete and unchanged."""
        return fetch_parts([self._part(*names)], self.files)[0]

    def read(self, *names: str | int) -> pa.Table:
        """Read one table."""
        return pq.read_table(self.find(*names))

    def find_all(self, *names: str | int) -> list[Path]:
        """Return the files of a folder that every task of a step has written, in the order of their ranks."""
        return fetch_parts([self._part(*names, rank) for rank in range(self.parts)], self.files)

    def _part(self, *names: str | int) -> PartFile:
        """Return which task writes a file: its name ends with the rank, if it is not of a step of one task."""
        kind, *numbers = names
        if kind in ("rows", "codes"):
            step = "source"
        else:
            step = "features" if kind == "features" else step_name(_STEP_OF[str(kind)], int(numbers[0]))
        alone = kind in ("rows", "codes", "chosen")
        return PartFile(self.name(*names), step, 0 if alone else int(numbers[-1]))

    def open_features(self) -> FeatureStore:
        """Open the features of all codes."""
        tables = [self._part("features", rank) for rank in range(self.parts)]
        sets = [replace(part, name=str(Path(part.name).with_suffix(".shingles"))) for part in tables]
        fetch_parts(tables + sets, self.files)
        return FeatureStore(self.options.tokens, self.files.here / "features")

    def read_answers(self, passes: int, *, rank: int | None = None, whole: bool = False) -> dict[bytes, Json]:
        """Return the sandbox's answers on the networks traced in the first passes, by id.

        Args: rank: only the task's own networks. whole: not only what tells computations apart.
        """
        columns = ["id", "answer"] if whole else [name for name in GRAPHS.names if name != "answer"]
        answers: dict[bytes, Json] = {}
        for at in range(1, passes + 1):
            for path in self.find_all("graphs", at) if rank is None else [self.find("graphs", at, rank)]:
                for row in pq.read_table(path, columns=columns).to_pylist():
                    answers[row.pop("id")] = json.loads(row["answer"]) if whole else row
        return answers

    def read_measured_answers(self, passes: int, *, whole: bool = False) -> dict[str, Json]:
        """Return the answers by id in hexadecimal, with the numbers that the same passes have measured."""
        answers = self.read_answers(passes, whole=whole)
        for row in (
            row for at in range(1, passes + 1) for path in self.find_all("numbers", at) for row in iterate_rows(path)
        ):
            answers[row["id"]]["behavior"] = row["behavior"]
        return {id_.hex(): answer for id_, answer in answers.items()}

    def read_networks(self, rank: int, passes: Sequence[int]) -> tuple[list[Json], Callable[[int], str]]:
        """Return the task's own networks of some passes, and a function from the place of one to its code."""
        rows = [row for at in passes for row in self.read("chosen", at).to_pylist()]
        parts = self.assign_parts([row["id"] for row in rows])
        own = [row for row, part in zip(rows, parts.tolist(), strict=True) if part == rank]
        wanted = {row["id"] for row in own}
        codes = {row["id"]: row["code"] for row in iterate_rows(self.find("codes", rank)) if row["id"] in wanted}
        return own, lambda place: codes[own[place]["id"]]


#: The steps of a pass that write files, by the first word of their names.
_STEP_OF = {"chosen": "choose", "graphs": "graphs", "numbers": "numbers"}


class StoredRows(RecordSource):
    """The rows of a source as read when the run began, and what it stated about itself."""

    def __init__(self, work: Work) -> None:
        self._work = work
        (path,) = fetch_parts([PartFile(SOURCE, "source", 0)], work.files)
        self._description: Json = json.loads(path.read_text(encoding="utf-8"))
        super().__init__(self._description["name"], self._description["where"])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches as they were read."""
        with pq.ParquetFile(self._work.find("rows", 0)) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group).combine_chunks().to_batches()[0]

    def inputs(self) -> list[Input]:
        """Return the inputs that were read."""
        return [Input.model_validate(item) for item in self._description["inputs"]]

    def files(self) -> list[Path]:
        """Return the files that are accessible from here."""
        return [path for name in self._description["files"] if (path := Path(name)).exists()]

    def license(self, stated: str | None) -> str:  # noqa: ARG002 (stated when the run began)
        """Return the license expression of the rows."""
        return str(self._description["license"])


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
