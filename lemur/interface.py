"""The Python interface over all packages: differences, the gate, and a synthesis.

Everything here calls the modules below; the command line and programs therefore do the same.
"""

from pathlib import Path

from lemur.desk.diff import diff as diff  # as they are: the commands read their results
from lemur.desk.gate import gate as gate
from lemur.synthesis import AttemptOptions, Sampling, Service
from lemur_core.files.atomic import PathLike
from lemur_core.files.progress import hide_progress
from manifests.interface import FinishedFolder, open_folder


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
