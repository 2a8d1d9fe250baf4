"""What the tasks of a curation take, each run in a process of its own: peak memory and CPU seconds by step.

`python -m benchmarks.task_memory DIR [ROWS ...]`: mutated LEMUR codes, graphs off, eight tasks. Claim: at most 4 GB a
task at a million codes. DIR keeps corpora and work folders; features come from the user's cache where they are there.
"""

import multiprocessing
import resource
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.mutations import write_corpus
from curate.model.options import CurateOptions
from curate.run.tasks import Work, list_steps, source_step
from curate.sources import open_source
from lemur_core.distributed.exchange import Exchange, Step, run_part

_TASKS = 8


def measure_steps(folder: Path, rows: int) -> Iterator[tuple[str, float, float]]:
    """Curate so many codes; for each step its name, the largest peak of a task in MiB, and CPU seconds of all tasks."""
    corpus, work = folder / f"c{rows}.parquet", folder / f"work{rows}"
    if not corpus.exists():
        write_corpus(corpus, rows)
    shutil.rmtree(work, ignore_errors=True)
    plan = Work(Exchange(work), CurateOptions(graph="off"), _TASKS)
    source = open_source(str(corpus))
    run_part(source_step(plan, source, source.digests()), 0)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        for step in list_steps(plan, folder / f"out{rows}", True, queued=False):
            taken = [pool.submit(_run, step, rank).result() for rank in range(step.tasks)]
            yield step.name, max(peak for peak, _ in taken), sum(seconds for _, seconds in taken)


def _run(step: Step, rank: int) -> tuple[float, float]:
    run_part(step, rank)
    own, started = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = own.ru_utime + own.ru_stime + started.ru_utime + started.ru_stime
    return (own.ru_maxrss + started.ru_maxrss) / 2**10, seconds


def main(folder: Path, sizes: list[int]) -> None:
    """Measure each size and print the steps."""
    folder.mkdir(parents=True, exist_ok=True)
    for rows in sizes:
        print(f"{rows:,} codes, {_TASKS} tasks", flush=True)
        for name, peak, seconds in measure_steps(folder, rows):
            print(f"  {name:<10} {peak:7,.0f} MiB {seconds:8.1f} s CPU", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(text) for text in sys.argv[2:]] or [30_000, 100_000])
