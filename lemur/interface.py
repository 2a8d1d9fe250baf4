"""The Python interface over all packages: a synthesis, and the Hub.

Everything here calls the modules below; the command line and programs therefore do the same.
"""

from collections.abc import Collection
from pathlib import Path

from lemur.desk.diff import diff as diff  # as they are: the commands read their results
from lemur.desk.gate import gate as gate
from lemur.folders import verify_folder
from lemur.synthesis import AttemptOptions, Sampling, Service
from lemur_core.files.atomic import PathLike
from lemur_core.files.progress import hide_progress
from manifests.interface import FinishedFolder, open_folder
from manifests.publish.publishing import PublishReport
from manifests.publish.publishing import publish as publish_folder


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


def synthesize(
    library: PathLike,
    *,
    model: str,
    out: PathLike,
    options: AttemptOptions | None = None,
    sampling: Sampling | None = None,
    service: Service | None = None,
    force: bool = False,
    progress: bool = False,
) -> FinishedFolder:
    """Have a language model write networks from specs, and keep those that are closed, run, learn and are new.

    Args:
        library: the extraction that holds the specs.
        model: its name at the endpoint.
        out: the folder to write.
        options: how many networks to ask for, about which blocks and to what purpose, what they must be new to.
        sampling: temperature and length of an answer.
        service: the endpoint, its key, retries.
        force: replace a folder that exists.
        progress: show progress on stderr.

    Returns:
        The folder, with every attempt and the accepted networks.

    Raises:
        UserError: if a folder cannot be read, the model gives no answer, or `out` cannot be written.
        UsageError: if the address of the endpoint is none.

    Example:
        ```python
        from lemur import synthesize
        from lemur.synthesis import AttemptOptions

        options = AttemptOptions(attempts=2, query="channel attention")
        synthesis = synthesize("blocks", model="MODEL", out="synthesis", options=options)
        print([row["nn"] for row in synthesis.rows("records")])
        ```
    """
    from lemur.synthesis.loop import run_synthesis  # loads torch

    options, service, sampling = options or AttemptOptions(), service or Service(), sampling or Sampling()
    with hide_progress(unless=progress):
        run_synthesis(Path(library), model, Path(out), options, service, sampling=sampling, force=force)
    return open_folder(out)
