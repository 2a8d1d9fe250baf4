"""The Python interface over all packages: any finished folder, synthesis, and the whole pipeline.

Everything here calls the modules below; the command line and programs therefore do the same.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lemur.desk.diff import Difference
from lemur.desk.diff import diff as compare_corpora
from lemur.desk.gate import GateReport
from lemur.desk.gate import gate as check_contribution
from lemur.folders import show as show_item
from lemur.folders import verify_folder
from lemur.synthesis import AttemptOptions, Sampling, Service
from lemur_core.files import Json
from lemur_core.files.atomic import PathLike
from lemur_core.files.progress import hide_progress
from manifests.folders.kinds import Check, FoundItem
from manifests.interface import open_folder
from manifests.publish.publishing import PublishReport
from manifests.publish.publishing import publish as publish_folder


def verify(folder: PathLike, *, jobs: int | None = None) -> tuple[Check, ...]:
    """Read a finished folder of any kind again, and check its digests, schemas, counts and guarantees.

    Code of the folder runs in the sandbox alone: the printed calls of an extraction.

    Args:
        folder: a folder that any command wrote.
        jobs: worker processes; all cores by default.

    Returns:
        All checks in a fixed order, each with its name, `ok` and a detail.

    Raises:
        UserError: if the folder has no valid manifest.

    Example:
        ```python
        from lemur import verify

        failed = [check.name for check in verify("snapshot") if not check.ok]
        assert not failed
        ```
    """
    with hide_progress():
        return tuple(verify_folder(Path(folder), jobs=jobs))


def show(wanted: PathLike, *folders: PathLike) -> FoundItem:
    """Return what an item of a finished folder is, why it was kept, removed or failed, and where it is from.

    Args:
        wanted: a network, a record id, a block, a conversation, a run (or `net`); or a Python file that
            `lemur train assemble` wrote.
        folders: the folder that has it, then those that it was built from; for a Python file, those that have its
            blocks.

    Returns:
        Its facts, the lines that `lemur show` prints, and the links of its chain back to source lines.

    Raises:
        UserError: if a folder is not finished, or nothing in it has this name.

    Example:
        ```python
        from lemur import show

        for link in show("SqueezeExcitation", "blocks").links:
            print(link.what, link.name)
        ```
    """
    return show_item(os.fspath(wanted), list(map(Path, folders)))


def gate(
    paths: PathLike | Sequence[PathLike],
    *,
    against: Sequence[PathLike] = ("lemur",),
    runtime: Sequence[str] = (),
    jobs: int | None = None,
    unsafe_no_sandbox: bool = False,
) -> GateReport:
    """Check a contribution to LEMUR: contract, names, statistics, runs, what is new, secrets, licenses.

    Args:
        paths: one or more files, folders, or ranges of commits `A..B` of the repository in the working folder.
        against: snapshots, or sources of records such as `lemur` and `lemur-db`.
        runtime: packages that the networks can import in addition to the declared runtime.
        jobs: worker processes; all cores by default.
        unsafe_no_sandbox: run the networks without the sandbox; only for code that you trust.

    Returns:
        The findings by file; none if there is nothing to check.

    Raises:
        UserError: if a path or a reference cannot be read, or no sandbox is available.

    Example:
        ```python
        from lemur import gate

        report = gate("network.py", against=["snapshot"])
        print(report.passed)
        ```
    """
    with hide_progress():
        return check_contribution(
            [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)],
            against=[os.fspath(name) for name in against],
            jobs=jobs,
            unsafe=unsafe_no_sandbox,
            runtime=runtime,
        )


def diff(before: PathLike, after: PathLike) -> Difference:
    """Compare two corpora or snapshots, network by network.

    Args:
        before: a snapshot, or a source of records such as `lemur@2.0.6`.
        after: another one.

    Returns:
        Changes of names, codes and results; `counts()`, `to_json()` and `to_markdown()` state them.

    Raises:
        UserError: if one of them cannot be read.

    Example:
        ```python
        from lemur import diff

        difference = diff("snapshot", "snapshot")
        assert not difference.changes
        ```
    """
    with hide_progress():
        return compare_corpora(os.fspath(before), os.fspath(after))


def publish(
    folder: PathLike,
    *,
    repo_id: str,
    dry_run: bool = False,
    revision: str = "main",
    private: bool = False,
    force: bool = False,
    not_secret: Collection[str] = (),
    page: bool = False,
) -> PublishReport:
    """Put a finished folder on the Hugging Face Hub, in one commit or not at all, without a confirmation prompt.

    Args:
        folder: a finished folder; one that fails a check is not published.
        repo_id: `OWNER/NAME` of the dataset repository.
        dry_run: change nothing; the result states what would change.
        revision: the branch.
        private: make a new repository private.
        force: overwrite what somebody else changed there.
        not_secret: digests of findings that only look like secrets.
        page: publish the page of the folder, too.

    Returns:
        What changed, or would change: files, the commit, and codes that were withheld for their license.

    Raises:
        UserError: if a check fails, the folder holds something that must not be published, or the Hub refuses.
        RetryableError: if the Hub cannot be reached.

    Example:
        ```python
        from lemur import publish

        plan = publish("snapshot", repo_id="OWNER/NAME", dry_run=True)
        print(plan.changes, plan.withheld)
        ```
    """
    with hide_progress():
        return publish_folder(
            Path(folder),
            repo_id,
            verify=verify_folder,
            revision=revision,
            private=private,
            force=force,
            dry_run=dry_run,
            not_secret=not_secret,
            page=page,
        )


@dataclass(frozen=True)
class Synthesis:
    """Hold the outcome of a synthesis. It is a path, too.

    Attributes:
        folder: the folder with every attempt and the accepted networks.
        counts: attempts, answers, accepted networks, and at which step the others failed.
    """

    folder: Path
    counts: Json = field(repr=False, compare=False)

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def accepted(self) -> tuple[Json, ...]:
        """Return the rows of the accepted networks, in the columns of a LEMUR record."""
        return tuple(open_folder(self.folder).rows("networks"))


def synthesize(
    library: PathLike,
    *,
    model: str,
    out: PathLike,
    attempts: int = 8,
    goal: str = "",
    query: str | None = None,
    seed: int = 0,
    sampling: Sampling | None = None,
    service: Service | None = None,
    against: Sequence[PathLike] = (),
    license: str = "NOASSERTION",  # noqa: A002 (the word of every record)
    jobs: int | None = None,
    unsafe_no_sandbox: bool = False,
    force: bool = False,
    progress: bool = False,
) -> Synthesis:
    """Have a language model write networks from specs, and keep those that are closed, run, learn and are new.

    Args:
        library: the extraction that holds the specs.
        model: its name at the endpoint.
        out: the folder to write.
        attempts: networks to ask for.
        goal: the purpose of the networks, in words.
        query: draw the blocks from the results of this search.
        seed: draws blocks and answers.
        sampling: temperature and length of an answer.
        service: the endpoint, its key, retries.
        against: further folders that a network must be new to.
        license: the license that you state for the networks.
        jobs: worker processes; all cores by default.
        unsafe_no_sandbox: run the networks without the sandbox; only for code that you trust.
        force: replace a folder that exists.
        progress: show progress on stderr.

    Returns:
        The folder, with counts.

    Raises:
        UserError: if a folder cannot be read, the model gives no answer, or `out` cannot be written.
        UsageError: if the address of the endpoint is none.

    Example:
        ```python
        from lemur import synthesize

        synthesis = synthesize("blocks", model="MODEL", out="synthesis", attempts=2)
        print([row["nn"] for row in synthesis.accepted])
        ```
    """
    from lemur.synthesis.loop import run_synthesis  # loads torch

    others = tuple(map(Path, against))
    options = AttemptOptions(attempts, query, goal, seed, others, license, jobs, unsafe_no_sandbox)
    with hide_progress(unless=progress):
        counts = run_synthesis(
            Path(library), model, Path(out), options, service or Service(), sampling=sampling or Sampling(), force=force
        )
    return Synthesis(Path(out), counts)
