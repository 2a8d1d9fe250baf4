"""`lemur extract --executor`: tasks emit the classes of files and validate those of sources; one step writes all.

Tasks store their results in the user's cache, under keys derived from the whole run. The writing step is the
in-process extraction, which finds all of them there. So all tasks must share the cache.
"""

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

from extract.extractor import BlockExtractor, extract_to
from extract.model.results import Options, at_least
from extract.resolve.discover import select
from lemur_core.distributed.exchange import Exchange
from lemur_core.distributed.executors import Executor, Step, begin, forget, run_steps
from manifests.folders.manifest import Manifest, package_versions, read_manifest


def extract_in_tasks(
    out: Path, options: Options, executor: Executor, *, tasks: int, workers: int, work: str, force: bool = False
) -> Manifest | None:
    """Extract in tasks of an executor; the folder equals that of `extract_to`.

    Args:
        tasks: number of slices of the sources. workers: parallel tasks.
        work: a folder that all tasks share, or a URL; an interrupted run resumes there.

    Returns: The manifest; None if jobs were queued.
    Raises: UserError if the request is invalid, a task fails or is killed, or the work folder belongs to another run.
    """
    folder, out = Exchange(work), Path(os.path.abspath(out))  # noqa: PTH100 (like atomic_folder)
    with folder.begun("another run works there"):
        begin(folder, {"options": asdict(options), "tasks": tasks, "versions": package_versions()})
        forget(folder, "write")
        with _extractor(options) as extractor:  # sources are fetched and indexed here: tasks may have no network
            extractor.warm_index_once()
        jobs = run_steps(executor, lambda _: _steps(out, options, tasks, force), folder, workers)
    return read_manifest(out) if jobs is None else None


def _steps(out: Path, options: Options, tasks: int, force: bool) -> Iterator[Step]:
    if at_least(options.level, "emitted"):
        yield Step("emit", tasks, partial(_emit_slice, options))
    if at_least(options.level, "executed"):
        yield Step("sources", tasks, partial(_validate_slice, options))
    yield Step("write", 1, partial(_write, options, out, force))


def _emit_slice(options: Options, rank: int, tasks: int) -> None:
    with _extractor(options) as extractor:
        classes = select(extractor.warm_index_once(), options.selection).classes
        files = {place: number for number, place in enumerate(dict.fromkeys(item.module.file.blob for item in classes))}
        extractor.emit([item for item in classes if files[item.module.file.blob] % tasks == rank])


def _validate_slice(options: Options, rank: int, tasks: int) -> None:
    with _extractor(replace(options, jobs=1)) as extractor:
        mine = {source.name for source in extractor.facts.sources[rank::tasks]}
        deque(extractor.extract(select(extractor.warm_index_once(), options.selection), mine), maxlen=0)


def _write(options: Options, out: Path, force: bool, _rank: int, _tasks: int) -> None:
    extract_to(out, replace(options, retry_failed=False), force=force)


def _extractor(options: Options) -> BlockExtractor:
    return BlockExtractor(**{field.name: getattr(options, field.name) for field in fields(options)})
