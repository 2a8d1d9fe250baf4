"""Reading from the Hugging Face Hub: how a dataset is named, and its errors as lines that say what to do."""

import contextlib
import logging
import re
from collections.abc import Iterator

from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.progress import note

_SPEC = re.compile(r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^\s@]+))?")
_TRY_AGAIN = (408, 425, 429)
_RETRIES = re.compile(r"thrown while requesting|Retrying in|before retry")
_RETRIES_TOLD_BY = "huggingface_hub.utils._http"


def parse_dataset(spec: str) -> tuple[str, str | None]:
    """Repository and revision of a dataset named `hf://datasets/OWNER/NAME`, `@REVISION` after it or not.

    Raises: UserError if it is no such name.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UserError(f"{spec}: not a dataset on the Hub; write hf://datasets/OWNER/NAME or …/NAME@REVISION")
    return match["repo"], match["revision"]


@contextlib.contextmanager
def hub_errors(spec: str, advice: str) -> Iterator[None]:
    """What goes wrong in here with `spec`, in one line.

    Args:
        advice: what to do where trying again may help.

    Raises: RetryableError if the Hub cannot be reached; UserError if it does not give what was asked for.
    """
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError
    from pyarrow import ArrowException

    # The bases include that of every transport error, whichever HTTP library this release is built on.
    network: tuple[type[BaseException], ...] = (OSError, EOFError, *HfHubHTTPError.__bases__)
    refused = "check the name, the revision, and that `hf auth login` was done"
    try:
        with _retries_in_one_line(spec):
            yield
    except (DatasetsError, ArrowException, ValueError, RuntimeError) as error:
        raise UserError(f"{spec}: {_line(error)}; {refused}") from error
    except network as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int) and 400 <= status < 500 and status not in _TRY_AGAIN:
            raise UserError(f"{spec}: {_line(error)}; {refused}") from error
        raise RetryableError(f"{spec}: the Hub cannot be read: {_line(error)}; {advice}") from error


@contextlib.contextmanager
def _retries_in_one_line(spec: str) -> Iterator[None]:
    """The Hub's client tells of each of its retries in two lines; here they are one, at the first."""
    told = False

    def passes(record: logging.LogRecord) -> bool:
        nonlocal told
        if not _RETRIES.search(record.getMessage()):
            return True
        if not told:
            note(f"{spec}: the Hub does not answer; trying again for half a minute")
        told = True
        return False

    logger = logging.getLogger(_RETRIES_TOLD_BY)
    logger.addFilter(passes)
    try:
        yield
    finally:
        logger.removeFilter(passes)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
