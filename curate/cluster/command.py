"""`lemur curate --executor`: run the steps in their order on the chosen executor."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from curate.cluster import steps
from curate.cluster.work import Work, step_name
from curate.model.options import CurateOptions
from curate.model.rights import check_origins
from curate.published.delta import refuse_conflicts
from curate.run.pipeline import describe_options
from curate.run.strict import raises_support
from curate.sources.rows import RecordSource
from lemur_core.distributed.exchange import Exchange
from lemur_core.distributed.executors import Executor, run_steps
from lemur_core.distributed.parts import Step, begin, check_memory, forget, is_done, number_step, run_part
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UsageError
from manifests.folders.manifest import FILE_NAME, Manifest, package_versions, read_manifest

#: Rounds, of two steps each, to queue before one task decides the rest. All of LEMUR needs four.
QUEUED_ROUNDS = 5

#: Passes to queue when survivors are traced; the step `write` traces the rest.
QUEUED_PASSES = 2

#: The kinds of steps of a curation, in their order.
STEP_KINDS = ("features", "records", "graphs", "numbers", "keys", "links", "round", "finish", "witnesses", "write")

#: When steps are started one by one: run rounds while more than this many codes are open.
_FEW_OPEN = 1_000


def curate_in_tasks(
    source: RecordSource,
    names: list[str],
    out: Path,
    options: CurateOptions,
    executor: Executor,
    *,
    against: Sequence[Path] = (),
    origins: Sequence[Path] = (),
    tasks: int,
    workers: int,
    work: str,
    memory: Mapping[str, int],
    force: bool = False,
) -> Manifest | None:
    """Curate a source into the folder `out` by tasks of an executor; the tables are the same as with `curate`.

    Args:
        names: names of the source, as requested.
        against: finished snapshots and deltas that all tasks can read; `out` becomes a delta to them.
        origins: extractions that the last task can read.
        tasks: number of ranges into which codes are divided. workers: tasks at a time.
        work: a folder that all tasks can access, or an address; an interrupted run resumes from it.
        memory: MiB to reserve for a task, by kind of step; "" for all others.

    Returns: the manifest; None if jobs were queued.
    Raises: UserError for bad input, a task that fails or was killed, or a work folder of another run.
    """
    if options.profile != "strict":
        raise UsageError("--executor: only profile strict is divided among tasks; leave it out or switch")
    refuse_conflicts(against, options, None)
    repositories = check_origins(origins)
    out, *seen = (Path(os.path.abspath(path)) for path in (out, *against, *origins))  # noqa: PTH100
    parents = seen[: len(against)]
    plan = Work(Exchange(work), options, tasks, tuple(parents), tuple(seen[len(against) :]))
    check_memory(memory, STEP_KINDS)
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
        list_steps = _queue_steps if executor == "slurm" else _watch_steps
        jobs = run_steps(executor, list_steps(plan, out, force), plan.files, workers, memory)
    return read_manifest(out) if jobs is None else None


def source_step(plan: Work, source: RecordSource, digests: Mapping[str, str]) -> Step:
    """Return the step that the command itself runs first: it reads the source, which must have these digests."""
    return _step(plan, "source", 1, steps.store_rows, source, digests)


def _queue_steps(plan: Work, out: Path, force: bool) -> Iterator[Step]:
    """Yield all steps with a fixed number of passes and rounds."""
    yield from _before_rounds(plan)
    passes = min(QUEUED_PASSES, _most_passes(plan))
    for at in range(1, passes + 1):
        for number in range(2 * QUEUED_ROUNDS):
            yield _round(plan, at, number)
        yield from _after_rounds(plan, at, 2 * QUEUED_ROUNDS)
    yield from _last_steps(plan, passes, out, force)


def _watch_steps(plan: Work, out: Path, force: bool) -> Iterator[Step]:
    """Yield all steps, with as many passes and rounds as are worthwhile; each once the one before is done."""
    yield from _before_rounds(plan)
    at = 0
    while at < _most_passes(plan) and (not at or plan.last_pass(at + 1) > at):
        at += 1
        number = 0
        while number < 2 or steps.count_open(plan, at, number) > _FEW_OPEN:
            yield _round(plan, at, number)
            yield _round(plan, at, number + 1)
            number += 2
        yield from _after_rounds(plan, at, number)
    yield from _last_steps(plan, at, out, force)


def _most_passes(plan: Work) -> int:
    """Return how many passes are worthwhile.

    If survivors are traced, passes repeat until nothing is left to trace; only one is worthwhile if support is raised
    or graphs may show that new codes duplicate something published, since the first selection is then not final.
    """
    if plan.options.graphs == "survivors":
        return 1 if plan.against or raises_support(plan.options) else sys.maxsize
    return 0 if plan.against and plan.options.graphs != "off" else 1


def _before_rounds(plan: Work) -> Iterator[Step]:
    yield _step(plan, "features", plan.parts, steps.work_out_features)
    yield _step(plan, "records", 1, steps.rank_records)
    if plan.options.graphs in ("all", "keep-different"):
        yield from _trace(plan, 0)
    if _most_passes(plan):
        yield _step(plan, "keys", plan.parts, steps.write_keys)
        yield _step(plan, "links", plan.parts, steps.join_keys)


def _round(plan: Work, at: int, number: int) -> Step:
    return _step(plan, step_name(f"round-{number:02d}", at), plan.parts, steps.decide_round, at, number)


def _after_rounds(plan: Work, at: int, rounds: int) -> Iterator[Step]:
    yield _step(plan, step_name("finish", at), 1, steps.finish, at, rounds)
    if plan.options.graphs == "survivors":
        yield from _trace(plan, at)


def _trace(plan: Work, at: int) -> Iterator[Step]:
    yield _step(plan, step_name("graphs", at), plan.parts, steps.trace_graphs, at)
    yield _step(plan, step_name("numbers", at), plan.parts, steps.measure_behaviors, at)


def _last_steps(plan: Work, passes: int, out: Path, force: bool) -> Iterator[Step]:
    if passes:
        yield _step(plan, "witnesses", plan.parts, steps.find_witnesses, passes)
    yield _step(plan, "write", 1, steps.write_snapshot, passes, out, force)


def _step(plan: Work, name: str, tasks: int, run: Callable[..., None], *arguments: object) -> Step:
    return Step(name, tasks, partial(run, plan, *arguments), plan.files)
