"""Access the Hugging Face Hub through its own client: names, time limits, and errors as one line with advice.

The client takes 0.4 s to import: import this module only where the Hub is certain to be needed.

The token comes from the client's login or environment; the user is never prompted for it, and no message contains it.
"""

import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from huggingface_hub import HfApi, constants, get_session, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported lazily
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from lemur_core.files.errors import RetryableError, UsageError, UserError

_TEMPORARY = frozenset({408, 425, 429})
_LOGIN = "run `hf auth login`"
#: Errors without an answer of the server, of whichever HTTP library this release of the client uses.
_TRANSPORT = (*(kind for kind in HfHubHTTPError.__bases__ if kind is not OSError), ConnectionError, TimeoutError)


def _translate(what: str, error: Exception, again: str) -> UserError:
    """Convert an error of the client about `what` into one line with advice, without the token."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    responses = (getattr(item, "response", None) for item in causes)
    status = next((item.status_code for item in responses if item is not None), None)
    text = next((m for item in causes if (m := getattr(item, "server_message", None))), None)
    text = text or str(error if status else causes[-1]) or type(causes[-1]).__name__
    detail = " ".join(text.strip().splitlines()[:2]).rstrip(".")
    try:
        token = get_token()
    except Exception:  # noqa: BLE001 (whatever fails while a job of CI exchanges its identity, there is no token)
        token = None
    detail = detail.replace(token, "…") if token else detail
    if any(isinstance(item, OfflineModeIsEnabled) for item in causes):
        return RetryableError(
            f"{what}: the Hub's client is offline by its settings; unset HF_HUB_OFFLINE, and run again"
        )
    # So the client reports a truncated download, with advice that is not for our users.
    _, truncated, sizes = str(error).partition("Consistency check failed: ")
    broken = truncated or any(isinstance(item, _TRANSPORT) for item in causes)
    if status in _TEMPORARY or (status or 0) >= 500 or (status is None and broken):
        where = f"the Hub answers with status {status}: " if status else "the Hub cannot be reached: "
        if truncated:
            where, detail = "a download ended early: ", sizes.splitlines()[0].rstrip(".")
        return RetryableError(f"{what}: {where}{detail}; run the same command again: {again}")
    if isinstance(error, RevisionNotFoundError):
        detail = "no such revision; use an existing branch, tag or commit"
    elif isinstance(error, RepositoryNotFoundError):
        detail = f"no such repository, or it is private and you may not see it; check the name, or {_LOGIN}"
    elif status == 401:
        detail = f"the Hub does not know who you are; {_LOGIN}"
    elif status == 403:
        detail = f"no permission: {detail}; {_LOGIN} with a token that may do this"
    elif status == 412:
        detail = "another commit came in between; run again to compare"
    elif status is not None:
        detail = f"the Hub refuses with status {status}: {detail}"
    elif isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else ""
        detail = f"{where}{error.strerror or detail}; free space, or choose another folder"
    return UserError(f"{what}: {detail}")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hub:
    """A connection to the Hub.

    Args:
        endpoint: its address; by default that of the client's environment.
        answer_seconds: the timeout for any response, and for any part of it.
    """

    endpoint: str | None = None
    answer_seconds: float = 120.0

    def api(self) -> HfApi:
        """Return the Hub's client."""
        return HfApi(endpoint=self.endpoint, library_name="lemur-curator")

    def call(self, what: str, work: Callable[[], T], *, again: str) -> T:
        """Call `work` and return its result; the client prints nothing but progress bars on a terminal.

        The client itself retries what it uploads and downloads.

        Args: what: the repository and the action, for messages. again: what a rerun does, for the message.
        Raises: RetryableError if it failed temporarily; UserError for other failures of the Hub.
        """
        forced = constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
        quiet = not (sys.stderr.isatty() or forced or are_progress_bars_disabled())
        level = hub_logging.get_verbosity()
        hub_logging.set_verbosity(logging.ERROR)
        if quiet:
            disable_progress_bars()
        # The client sets no time limit for most of its requests, and replaces its session after some errors.
        hooks = get_session().event_hooks["request"]
        hooks.append(limit := partial(_add_timeout, self.answer_seconds))
        try:
            return work()
        except UserError:
            raise
        except Exception as error:
            raise _translate(what, error, again) from error
        finally:
            hooks.remove(limit)
            hub_logging.set_verbosity(level)
            if quiet:
                enable_progress_bars()


def _add_timeout(seconds: float, request: Any) -> None:
    own = request.extensions.get("timeout", {})
    ours = {"connect": 10.0, "read": seconds, "write": seconds, "pool": None}
    request.extensions["timeout"] = ours | {key: value for key, value in own.items() if value is not None}


_SPEC = re.compile(r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^\s@]+))?")


def parse_dataset(spec: str) -> tuple[str, str | None]:
    """Return repository and revision of `hf://datasets/OWNER/NAME` or `...@REVISION`; None for no revision.

    Raises: UsageError if `spec` is not such a name.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(f"{spec}: not a dataset on the Hub; write hf://datasets/OWNER/NAME or …/NAME@REVISION")
    return match["repo"], match["revision"]


def read_name(repo_id: str) -> str:
    """Return OWNER/NAME of a data set, which may also be written `datasets/...` or `hf://datasets/...`.

    Raises: UsageError if it is no valid name on the Hub, or names no owner, whom the Hub would add only sometimes.
    """
    name = repo_id.removeprefix("hf://")
    name = name.removeprefix("datasets/") if name.count("/") == 2 else name
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UsageError(f"{repo_id!r}: not a repository name; give OWNER/NAME (letters, digits, - _ .)") from error
    if "/" not in name:
        raise UsageError(f"{repo_id!r}: not a repository name: the owner is missing; give OWNER/{name}")
    return name
