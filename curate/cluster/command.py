"""`lemur curate --executor`: run the steps in their order on the chosen executor."""

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from curate.cluster import steps
from curate.cluster.work import Work
from curate.dedup.strict import raises_support
from curate.model.options import CurateOptions
from curate.model.origins import check_origins
from curate.published.siblings import refuse_conflicts
from curate.run.pipeline import recorded
from curate.sources.rows import RecordSource
from lemur_core.distributed.exchange import Exchange
from lemur_core.distributed.executors import Executor, Step, begin, forget, run_steps
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UsageError
from manifests.folders.manifest import FILE_NAME, Manifest, package_versions, read_manifest

#: Rounds, of two steps each, to queue before one task decides the rest. All of LEMUR needs four.
QUEUED_ROUNDS = 5

#: Passes to queue when survivors are traced; the step `write` traces the rest.
QUEUED_PASSES = 2

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
    force: bool = False,
) -> Manifest | None:
    """Curate a source into the folder `out` by tasks of an executor; the tables are the same as with `curate`.

    Args:
        names: names of the source, as requested.
        against: finished snapshots and deltas that all tasks can read; `out` becomes a delta to them.
        origins: extractions that the last task can read.
        tasks: number of ranges into which codes are divided. workers: tasks at a time.
        work: a folder that all tasks can access, or an address; an interrupted run resumes from it.

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
    with plan.files.begun("another run works there"):
        request = {"sources": names, "options": recorded(options), "tasks": tasks, "versions": package_versions()}
        request |= {"origins": [parent.sha256 for parent in repositories]} if repositories else {}
        begin(plan.files, request | {"against": [sha256_file(parent / FILE_NAME) for parent in parents]})
        steps.store_rows(plan, source)
        forget(plan.files, "write")
        jobs = run_steps(
            executor, lambda watched: (_watch_steps if watched else _queue_steps)(plan, out, force), plan.files, workers
        )
    return read_manifest(out) if jobs is None else None


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
    yield Step("features", plan.parts, partial(steps.work_out_features, plan))
    yield Step("records", 1, partial(steps.rank_records, plan))
    if plan.options.graphs in ("all", "keep-different"):
        yield Step("graphs", plan.parts, partial(steps.trace_graphs, plan, 0))
    if _most_passes(plan):
        yield Step("keys", plan.parts, partial(steps.write_keys, plan))
        yield Step("links", plan.parts, partial(steps.join_keys, plan))


def _round(plan: Work, at: int, number: int) -> Step:
    return Step(_step_name(f"round-{number:02d}", at), plan.parts, partial(steps.decide_round, plan, at, number))


def _after_rounds(plan: Work, at: int, rounds: int) -> Iterator[Step]:
    yield Step(_step_name("finish", at), 1, partial(steps.finish, plan, at, rounds))
    if plan.options.graphs == "survivors":
        yield Step(_step_name("graphs", at), plan.parts, partial(steps.trace_graphs, plan, at))


def _last_steps(plan: Work, passes: int, out: Path, force: bool) -> Iterator[Step]:
    if passes:
        yield Step("witnesses", plan.parts, partial(steps.find_witnesses, plan, passes))
    yield Step("write", 1, partial(steps.write_snapshot, plan, passes, out, force))


def _step_name(step: str, at: int) -> str:
    return step if at == 1 else f"pass-{at}-{step}"
