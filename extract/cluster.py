"""`lemur extract --executor`: tasks emit the classes of files and validate those of sources; one step writes all.

Tasks store their results in the user's cache, under keys derived from the whole run. The writing step is the
in-process extraction, which finds all of them there. So all tasks must share the cache.
"""

import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from extract.extractor import BlockExtractor, extract_to, open_extractor
from extract.model.results import Options, at_least
from extract.resolve.discover import select
from lemur_core.distributed.exchange import Exchange, Step, begin, check_memory, forget
from lemur_core.distributed.executors import run_steps
from lemur_core.files.errors import UserError
from manifests.folders.manifest import Manifest, package_versions, read_manifest
from manifests.options import DistributedOptions

#: The kinds of steps of an extraction, in their order.
STEP_KINDS = ("emit", "sources", "write")


def extract_in_tasks(
    out: Path,
    options: Options,
    distributed: DistributedOptions,
    *,
    force: bool = False,
) -> Manifest | None:
    """Extract in tasks of an executor; the folder equals that of `extract_to`.

    Args:
        distributed: the executor and how it divides the sources; an interrupted run resumes in its work folder.

    Returns: The manifest; None if jobs were queued.
    Raises: UserError if the request is invalid, a task fails or is killed, or the work folder belongs to another run.
    """
    executor, tasks, workers, work = distributed.resolve(out)
    folder, out = Exchange(work), Path(os.path.abspath(out))  # noqa: PTH100 (like atomic_folder)
    check_memory(dict(distributed.memory), STEP_KINDS)
    with folder.hold():
        with open_extractor(options) as extractor:
            inputs = {source.name: source.digest for source in extractor.facts.sources}
            plan = {"options": asdict(options), "inputs": inputs, "tasks": tasks, "versions": package_versions()}
            begin(folder, plan)
            extractor.warm_index_once()  # sources are fetched and indexed here: tasks may have no network
        forget(folder, "write")
        steps = _list_steps(folder, _ExtractionRequest(options, inputs, out, force), tasks)
        jobs = run_steps(executor, steps, folder, workers, dict(distributed.memory))
    return read_manifest(out) if jobs is None else None


@dataclass(frozen=True, slots=True)
class _ExtractionRequest:
    """The extraction that tasks divide: `inputs` are the digests that the sources had when the run began."""

    options: Options
    inputs: Mapping[str, str]
    out: Path
    force: bool

    def open_extractor(self, **changes: Any) -> BlockExtractor:
        """Open the sources with some other options. Raises: UserError if one has changed."""
        extractor = open_extractor(replace(self.options, **changes))
        changed = [source.name for source in extractor.facts.sources if self.inputs.get(source.name) != source.digest]
        if changed:
            raise UserError(f"{changed[0]}: has changed since the run began; start again, with another --work")
        return extractor


def _list_steps(folder: Exchange, request: _ExtractionRequest, tasks: int) -> Iterator[Step]:
    if at_least(request.options.level, "emitted"):
        yield Step("emit", tasks, partial(_emit_slice, request), folder)
    if at_least(request.options.level, "executed"):
        yield Step("sources", tasks, partial(_validate_slice, request), folder)
    yield Step("write", 1, partial(_write, request), folder)


def _emit_slice(request: _ExtractionRequest, rank: int, tasks: int) -> None:
    with request.open_extractor() as extractor:
        classes = select(extractor.warm_index_once(), request.options.selection).classes
        # By file, not by class: the classes of one file share its facts and most of their closures.
        files = {blob: number for number, blob in enumerate(dict.fromkeys(item.module.file.blob for item in classes))}
        extractor.emit([item for item in classes if files[item.module.file.blob] % tasks == rank])


def _validate_slice(request: _ExtractionRequest, rank: int, tasks: int) -> None:
    with request.open_extractor(jobs=1) as extractor:
        mine = {source.name for source in extractor.facts.sources[rank::tasks]}
        deque(extractor.extract(select(extractor.warm_index_once(), request.options.selection), mine), maxlen=0)


def _write(request: _ExtractionRequest, _rank: int, _tasks: int) -> None:
    with request.open_extractor():  # the sources are as they were
        # Results from before the tasks ran are not those of a run that repeats what failed.
        options, reuse = replace(request.options, retry_failed=False), not request.options.retry_failed
        extract_to(request.out, options, force=request.force, reuse=reuse)
