"""Reading from the Hugging Face Hub: how a dataset is named, and its errors as lines that say what to do."""

import contextlib
import re
from collections.abc import Iterator

from manifests.errors import RetryableError, UserError

_SPEC = re.compile(r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^\s@]+))?")
_TRY_AGAIN = (408, 425, 429)


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
        yield
    except (DatasetsError, ArrowException, ValueError, RuntimeError) as error:
        raise UserError(f"{spec}: {_line(error)}; {refused}") from error
    except network as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int) and 400 <= status < 500 and status not in _TRY_AGAIN:
            raise UserError(f"{spec}: {_line(error)}; {refused}") from error
        raise RetryableError(f"{spec}: the Hub cannot be read: {_line(error)}; {advice}") from error


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
