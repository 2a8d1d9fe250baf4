"""The Python interface of curation: one function that writes a snapshot, and the snapshot as an object.

Everything here calls the modules below; the command line and programs therefore do the same.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from curate.compute.runs import TASK_DATASETS
from curate.folder.explain import Explanation, explain
from curate.kinds import verify
from curate.model.options import CurateOptions
from curate.model.previous import read_previous
from curate.published.novel import NoveltyChecker
from curate.published.novelty import Novelty
from curate.run.pipeline import curate as curate_source
from curate.sources import open_sources
from lemur_core.files.atomic import PathLike, check_free
from lemur_core.files.errors import UsageError
from lemur_core.files.progress import hide_progress
from manifests.folders.checks import Check
from manifests.folders.kinds import SNAPSHOT
from manifests.folders.manifest import Manifest
from manifests.records import Decision, LemurRecord


def curate(
    source: PathLike | Sequence[PathLike],
    *,
    out: PathLike,
    options: CurateOptions | None = None,
    origins: Sequence[PathLike] = (),
    previous: PathLike | None = None,
    jobs: int | None = None,
    force: bool = False,
    progress: bool = False,
) -> "Snapshot":
    """Deduplicate, split and explain a corpus of network codes, and write a snapshot of it.

    Args:
        source: what `lemur curate` takes as SOURCE: `lemur[@VERSION]`, a table, a folder of Python files, a dataset of
            the Hub; or several of these.
        out: the folder to write; it is written completely or not at all.
        options: thresholds, filters and everything else that decides what is kept.
        previous: a snapshot, or `hf://datasets/OWNER/NAME`: what it kept stays kept and keeps its split, as far as the
            source still has it.
        origins: extractions; each code is compared with their blocks, which states its origin and license.
        jobs: worker processes; all cores by default.
        force: replace a folder that exists.
        progress: show progress on stderr.

    Returns:
        The snapshot in `out`.

    Raises:
        UserError: if a source cannot be read, no record is left, or `out` cannot be written.
        UsageError: if options contradict each other.

    Example:
        ```python
        from curate import CurateOptions, curate

        snapshot = curate("networks.jsonl", out="snapshot", options=CurateOptions(graph="off"))
        print(f"{len(snapshot.kept)} of {len(snapshot.decisions)} rows are kept")
        ```
    """
    sources = [source] if isinstance(source, str | os.PathLike) else source
    folder = Path(out)
    with hide_progress(unless=progress):
        options = options or CurateOptions()
        rows = open_sources([os.fspath(item) for item in sources], options.of_files)
        check_free(folder, force=force)
        curate_source(
            rows,
            folder,
            options,
            origins=list(map(Path, origins)),
            previous=None if previous is None else read_previous(os.fspath(previous)),
            jobs=jobs,
            force=force,
        )
    return Snapshot(folder)


@dataclass(frozen=True, init=False)
class Snapshot:
    """Open a folder that `curate` wrote. A snapshot is a path, too: pass it wherever a folder is expected.

    Attributes:
        folder: the folder of the snapshot.
        manifest: how it was created, with counts and digests.

    Args:
        folder: a finished snapshot.

    Raises:
        UserError: if the folder is not a snapshot.

    Example:
        ```python
        from curate import Snapshot

        snapshot = Snapshot("snapshot")
        removed = [decision for decision in snapshot.decisions if not decision.kept]
        print(removed[0].nn, removed[0].stage, removed[0].reason)
        print("\\n".join(snapshot.explain(removed[0].nn).lines))
        assert all(check.ok for check in snapshot.verify())
        assert snapshot.novelty(snapshot.kept[0].nn_code).known
        ```
    """

    folder: Path
    manifest: Manifest = field(repr=False, compare=False)
    _checker: NoveltyChecker = field(repr=False, compare=False)

    def __init__(self, folder: PathLike) -> None:
        path = Path(folder)
        object.__setattr__(self, "folder", path)
        object.__setattr__(self, "manifest", SNAPSHOT.open(path))
        object.__setattr__(self, "_checker", NoveltyChecker(path))

    def __fspath__(self) -> str:
        return str(self.folder)

    @cached_property
    def kept(self) -> tuple[LemurRecord, ...]:
        """Return the kept records of all splits, with their codes."""
        with SNAPSHOT.reading(self.folder):
            return tuple(SNAPSHOT.rows(self.folder, LemurRecord))

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """Return one decision for each input row, in input order: kept, or removed and why."""
        with SNAPSHOT.reading(self.folder):
            return tuple(SNAPSHOT.rows(self.folder, Decision))

    def explain(self, name_or_id: str) -> Explanation:
        """Explain why one network was kept or removed, with the difference to the record that represents it.

        Args:
            name_or_id: an exact name, an id, or at least its first six digits.

        Returns:
            `lines` to print, and the same as `facts`.

        Raises:
            UserError: if nothing, or more than one network, has this name or id.
        """
        return explain(self.folder, name_or_id)

    def verify(self, *, jobs: int | None = None) -> tuple[Check, ...]:
        """Return all checks of the folder: digests, schemas, counts and guarantees. Nothing in it is executed.

        Args:
            jobs: worker processes; all cores by default.
        """
        with hide_progress():
            return tuple(verify(self.folder, jobs=jobs))

    def novelty(
        self,
        code: str,
        *,
        graph: bool = True,
        task: str = "img-classification",
        prm: Mapping[str, object] | None = None,
        runtime: Sequence[str] = (),
        jobs: int | None = None,
        unsafe_no_sandbox: bool = False,
    ) -> Novelty:
        """Compare a network with the records of the snapshot, by text, by structure, by its graph and its numbers.

        The first call loads the snapshot, the first one with graphs starts the sandbox; both serve all further calls,
        from any thread. The network is traced in the sandbox if the snapshot holds graphs.

        Args:
            code: the text of a Python file, a network by LEMUR's contract or a module.
            graph: compare what it computes, too; without, nothing is run.
            task: the task whose inputs the network is traced with.
            prm: hyperparameters; usual ones by default, then those of the nearest records.
            runtime: packages that the network can import in addition to the declared runtime.
            jobs: worker processes that load the snapshot; all cores by default.
            unsafe_no_sandbox: run the network without the sandbox; only for code that you trust.

        Returns:
            Whether the network is known and why, and the nearest records.

        Raises:
            UserError: if the code is not Python, the folder cannot be compared with, or no sandbox is available.
            UsageError: if the task is not known.

        Example:
            ```python
            from curate import Snapshot

            snapshot = Snapshot("snapshot")
            novelty = snapshot.novelty(snapshot.kept[0].nn_code)
            print(novelty.verdict, novelty.reason)  # known  the same code, near by text, near by structure: …
            print(novelty.text.name, novelty.text.similarity)
            ```
        """
        if task not in TASK_DATASETS:
            raise UsageError(f"task {task}: not known; one of {', '.join(TASK_DATASETS)}")
        return self._checker.check(
            code, graph=graph, task=task, prm=prm, runtime=tuple(runtime), unsafe=unsafe_no_sandbox, jobs=jobs
        )
