"""`lemur curate --executor`: the steps in their order, on the executor that was asked for."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from curate.cluster import steps
from curate.cluster.work import Work
from curate.dedup.strict import raises_support
from curate.model.options import CurateOptions
from curate.model.origins import check_origins
from curate.published.published import check_parents
from curate.sources.rows import Source
from lemur_core.distributed.exchange import Exchange
from lemur_core.distributed.executors import Executor, Step, begin, forget, run_steps
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UsageError
from manifests.folders.manifest import FILE_NAME, Manifest, package_versions, read_manifest

#: Rounds, of two steps each, that are queued before what is left is decided by one task. All of LEMUR needs four.
QUEUED_ROUNDS = 5

#: Passes that are queued where survivors are traced; `write` goes on where more are needed.
QUEUED_PASSES = 2

#: Where somebody watches: as many as there are more than this many open codes.
_FEW_OPEN = 1_000


def curate_in_tasks(
    source: Source,
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
    """Curate a source into the folder `out` by tasks of an executor; the tables are those of `curate`.

    Args:
        names: of the source, as it was asked for.
        against: finished snapshots and deltas, which all tasks see; `out` becomes a delta to them.
        origins: extractions, which the last task sees.
        tasks: ranges into which codes are divided. workers: tasks at a time.
        work: a folder that all tasks see, or an address; a run that was cut short goes on there.

    Returns: the manifest; None where jobs were queued.
    Raises: UserError for bad input, a task that fails or was killed, or a work folder of another run.
    """
    if options.profile != "strict":
        raise UsageError("--executor: only profile strict is divided among tasks; leave it out or switch")
    check_parents(against)
    repositories = check_origins(origins)
    out, *seen = (Path(os.path.abspath(path)) for path in (out, *against, *origins))  # noqa: PTH100
    parents = seen[: len(against)]
    plan = Work(Exchange(work), options, tasks, tuple(parents), tuple(seen[len(against) :]))
    with plan.files.begun("another run works there"):
        asked = {"sources": names, "options": asdict(options), "tasks": tasks, "versions": package_versions()}
        asked |= {"origins": [parent.sha256 for parent in repositories]} if repositories else {}
        begin(plan.files, asked | {"against": [sha256_file(parent / FILE_NAME) for parent in parents]})
        steps.store_rows(plan, source)
        forget(plan.files, "write")
        jobs = run_steps(
            executor, lambda watched: (_watched if watched else _queued)(plan, out, force), plan.files, workers
        )
    return read_manifest(out) if jobs is None else None


def _queued(plan: Work, out: Path, force: bool) -> Iterator[Step]:
    """All steps with a fixed number of passes and rounds."""
    yield from _before_rounds(plan)
    passes = min(QUEUED_PASSES, _most_passes(plan))
    for at in range(1, passes + 1):
        for number in range(2 * QUEUED_ROUNDS):
            yield _round(plan, at, number)
        yield from _after_rounds(plan, at, 2 * QUEUED_ROUNDS)
    yield from _at_last(plan, passes, out, force)


def _watched(plan: Work, out: Path, force: bool) -> Iterator[Step]:
    """All steps with as many rounds and passes as are worth a step; each is asked for when the one before is done."""
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
    yield from _at_last(plan, at, out, force)


def _most_passes(plan: Work) -> int:
    """How many passes are worth their steps: until nothing is left to trace, where survivors are the first selection's.

    They are not where support is raised, or where graphs may show that something published stands for them.
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
    return Step(_named(f"round-{number:02d}", at), plan.parts, partial(steps.decide_round, plan, at, number))


def _after_rounds(plan: Work, at: int, rounds: int) -> Iterator[Step]:
    yield Step(_named("finish", at), 1, partial(steps.finish, plan, at, rounds))
    if plan.options.graphs == "survivors":
        yield Step(_named("graphs", at), plan.parts, partial(steps.trace_graphs, plan, at))


def _at_last(plan: Work, passes: int, out: Path, force: bool) -> Iterator[Step]:
    if passes:
        yield Step("witnesses", plan.parts, partial(steps.find_witnesses, plan, passes))
    yield Step("write", 1, partial(steps.write_snapshot, plan, passes, out, force))


def _named(step: str, at: int) -> str:
    return step if at == 1 else f"pass-{at}-{step}"
