"""`lemur curate --executor`: the steps in their order, on the executor that was asked for."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from curate.cluster import steps
from curate.cluster.work import KEPT, OPEN, Work
from curate.options import CurateOptions
from curate.rows import Source
from lemur_core.files.atomic import own
from lemur_core.files.errors import UsageError
from lemur_core.files.executors import Executor, Step, begin, forget, run_steps
from manifests.manifest import Manifest, package_versions, read_manifest

#: Rounds, of two steps each, that are queued before what is left is decided by one task. All of LEMUR needs four.
QUEUED_ROUNDS = 5

#: Where somebody watches: as many as there are more than this many open codes.
_FEW_OPEN = 1_000


def curate_in_tasks(
    source: Source,
    names: list[str],
    out: Path,
    options: CurateOptions,
    executor: Executor,
    *,
    tasks: int,
    workers: int,
    work: Path,
    force: bool = False,
) -> Manifest | None:
    """Curate a source into the folder `out` by tasks of an executor; the tables are those of `curate`.

    Args:
        names: of the source, as it was asked for.
        tasks: ranges into which codes are divided. workers: tasks at a time.
        work: a folder that all tasks see; a run that was cut short goes on there.

    Returns: the manifest; None where jobs were queued.
    Raises: UserError for bad input, a task that fails or was killed, or a work folder of another run.
    """
    if options.profile != "strict":
        raise UsageError("--executor: only profile strict is divided among tasks; leave it out or switch")
    plan = Work(Path(os.path.abspath(work)), options, tasks)  # noqa: PTH100 (as atomic_folder has it)
    with own(plan.folder, "lock", "another run works there"):
        asked = {"sources": names, "options": asdict(options), "tasks": tasks, "versions": package_versions()}
        begin(plan.folder, asked)
        steps.store_rows(plan, source)
        forget(plan.folder, "write")
        out = Path(os.path.abspath(out))  # noqa: PTH100
        jobs = run_steps(
            executor, lambda watched: (_watched if watched else _queued)(plan, out, force), plan.folder, workers
        )
    return read_manifest(out) if jobs is None else None


def _queued(plan: Work, out: Path, force: bool) -> Iterator[Step]:
    """All steps with a fixed number of rounds."""
    yield from _before_rounds(plan)
    yield from (_round(plan, number) for number in range(2 * QUEUED_ROUNDS))
    yield from _after_rounds(plan, 2 * QUEUED_ROUNDS, out, force)


def _watched(plan: Work, out: Path, force: bool) -> Iterator[Step]:
    """All steps with as many rounds as are worth a step; each is asked for when the one before is done."""
    yield from _before_rounds(plan)
    number = 0
    while number < 2 or steps.count_open(plan, number) > _FEW_OPEN:
        yield _round(plan, number)
        yield _round(plan, number + 1)
        number += 2
    yield from _after_rounds(plan, number, out, force)


def _before_rounds(plan: Work) -> Iterator[Step]:
    yield Step("features", plan.parts, partial(steps.work_out_features, plan))
    yield Step("records", 1, partial(steps.rank_records, plan))
    if plan.options.graphs in ("all", "keep-different"):
        yield Step("graphs", plan.parts, partial(steps.trace_graphs, plan, OPEN, 0))
    yield Step("keys", plan.parts, partial(steps.write_keys, plan))
    yield Step("links", plan.parts, partial(steps.join_keys, plan))


def _round(plan: Work, number: int) -> Step:
    return Step(f"round-{number:02d}", plan.parts, partial(steps.decide_round, plan, number))


def _after_rounds(plan: Work, rounds: int, out: Path, force: bool) -> Iterator[Step]:
    yield Step("finish", 1, partial(steps.finish, plan, rounds))
    yield Step("witnesses", plan.parts, partial(steps.find_witnesses, plan, rounds + 1))
    if plan.options.graphs == "survivors":
        yield Step("graphs", plan.parts, partial(steps.trace_graphs, plan, KEPT, rounds + 1))
    yield Step("write", 1, partial(steps.write_snapshot, plan, out, force))
