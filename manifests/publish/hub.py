"""Access the Hugging Face Hub through its own client: names, time limits, retries, and errors as one line with advice.

The client takes 0.4 s to import: import this module only where the Hub is certain to be needed.

The token comes from the client's login or environment; the user is never prompted for it, and no message contains it.
"""

import contextlib
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
from lemur_core.files.progress import note

_TEMPORARY = frozenset({408, 425, 429})
_LOGIN = "run `hf auth login` with a token that may write there"
#: Errors without an answer of the server, of whichever HTTP library this release of the client uses.
_TRANSPORT = (*(kind for kind in HfHubHTTPError.__bases__ if kind is not OSError), ConnectionError, TimeoutError)


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes."""
    return [error, *(_causes(error.__cause__) if error.__cause__ else [])]


def _find_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error, or of one of its causes."""
    statuses = (getattr(getattr(item, "response", None), "status_code", None) for item in _causes(error))
    return next((status for status in statuses if isinstance(status, int)), None)


def _is_temporary(error: BaseException) -> bool:
    """Return whether a retry may succeed: there was no connection, or the server is busy or broken."""
    status, causes = _find_status(error), _causes(error)
    if status is not None:
        return status in _TEMPORARY or status >= 500
    if any(isinstance(item, OfflineModeIsEnabled) for item in causes):
        return False
    # The second is how the client reports a truncated download.
    return any(isinstance(item, _TRANSPORT) for item in causes) or "Consistency check failed" in str(error)


def _translate(what: str, error: Exception, again: str) -> UserError:
    """Convert an error of the client about `what` into one line with advice."""
    status, detail = _find_status(error), _describe(error)
    if any(isinstance(item, OfflineModeIsEnabled) for item in _causes(error)):
        return RetryableError(
            f"{what}: the Hub's client is offline by its settings; unset HF_HUB_OFFLINE, and run again"
        )
    if _is_temporary(error):
        where = "" if status else "the Hub cannot be reached: "
        return RetryableError(f"{what}: {where}{detail}; run the same command again: {again}")
    if isinstance(error, RevisionNotFoundError):
        detail = "no such revision; use an existing branch, tag or commit"
    elif isinstance(error, RepositoryNotFoundError):
        detail = f"no such repository, or it is private and you may not see it; check the name, or {_LOGIN}"
    elif status == 401:
        detail = f"the Hub does not know who you are; {_LOGIN}"
    elif status == 403:
        detail = f"no permission to write: {detail}; {_LOGIN}"
    elif status is not None:
        detail = f"the Hub refuses with status {status}: {detail}"
    elif isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else ""
        detail = f"{where}{error.strerror or detail}; free space, or choose another folder"
    return UserError(f"{what}: {detail}")


def _describe(error: BaseException) -> str:
    """Return the server's message about an error, or else the client's, as one line without the token."""
    causes = _causes(error)
    deepest = causes[-1] if _find_status(error) is None else error
    text = next((m for item in causes if (m := getattr(item, "server_message", None))), None) or str(deepest)
    line = " ".join((text.strip() or type(deepest).__name__).splitlines()[:2])
    try:
        token = get_token()
    except Exception:  # noqa: BLE001 (whatever fails while a job of CI exchanges its identity, there is no token)
        token = None
    return line.replace(token, "…") if token else line


T = TypeVar("T")

#: Seconds before the second attempt, the third, and so on.
DELAYS = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class Hub:
    """A connection to the Hub.

    Args:
        endpoint: its address; by default that of the client's environment.
        answer_seconds: the timeout for any response, and for any part of it.
        sleep: waits between attempts.
        delays: the seconds to wait before each further attempt.
    """

    endpoint: str | None = None
    answer_seconds: float = 120.0
    sleep: Callable[[float], None] = time.sleep
    delays: Sequence[float] = DELAYS

    def api(self) -> HfApi:
        """Return the Hub's client."""
        return HfApi(endpoint=self.endpoint, library_name="lemur-curator")

    def call(self, what: str, work: Callable[[], T], *, again: str) -> T:
        """Call `work` and return its result, with retries at growing intervals while its failure may be temporary.

        The client itself retries what it uploads and downloads, but neither listings nor commits.

        Args: what: the repository and the action, for messages. again: what a rerun does, for the message after the
            last attempt.
        Raises: RetryableError if the last attempt, too, failed temporarily; UserError for other failures of the Hub.
        """
        for delay in (*self.delays, None):
            try:
                _limit_waiting(self.answer_seconds)
                return work()
            except UserError:
                raise
            except Exception as error:
                if delay is None or not _is_temporary(error):
                    raise _translate(what, error, again) from error
                note(f"{what}: the Hub: {_describe(error)}; next try in {delay:.0f} s")
                self.sleep(delay)
        raise AssertionError("the last attempt returns or raises")

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Silence the client, and show its progress bars only on a terminal; undo both and time limits at the end."""
        forced = constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
        quiet = not (sys.stderr.isatty() or forced or are_progress_bars_disabled())
        level = hub_logging.get_verbosity()
        hub_logging.set_verbosity(logging.ERROR)
        if quiet:
            disable_progress_bars()
        try:
            yield
        finally:
            _limit_waiting(None)
            hub_logging.set_verbosity(level)
            if quiet:
                enable_progress_bars()


def _limit_waiting(seconds: float | None) -> None:
    """Set the time limit of all requests of the client that have none: it sets none for most.

    The client replaces its session after some errors, so this is called before each attempt.
    """
    hooks = get_session().event_hooks["request"]
    hooks[:] = [hook for hook in hooks if getattr(hook, "func", None) is not _add_timeout]
    if seconds is not None:
        hooks.append(partial(_add_timeout, seconds))


def _add_timeout(seconds: float, request: Any) -> None:
    own = request.extensions.get("timeout", {})
    ours = {"connect": 10.0, "read": seconds, "write": seconds, "pool": None}
    request.extensions["timeout"] = ours | {key: value for key, value in own.items() if value is not None}


_SPEC = re.compile(r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^\s@]+))?")
#: The format of a commit hash.
COMMIT = re.compile(r"[0-9a-f]{40}")
_INVALID_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/.]|/\.|[/.]$|\.lock(?:/|$)|^@$|^refs/|^$")


def parse_dataset(spec: str) -> tuple[str, str | None]:
    """Return repository and revision of `hf://datasets/OWNER/NAME` or `...@REVISION`; None for no revision.

    Raises: UsageError if `spec` is not such a name.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(f"{spec}: not a dataset on the Hub; write hf://datasets/OWNER/NAME or …/NAME@REVISION")
    return match["repo"], match["revision"]


def check_names(repo_id: str, branch: str | None) -> None:
    """Check that repository and branch, if any, are valid names on the Hub.

    Source: https://git-scm.com/docs/git-check-ref-format
    Raises: UsageError if one is invalid, or the repository has no owner: the Hub would add the user's own name only
        sometimes.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UsageError(
            f"{repo_id!r}: not a repository name: {str(error).splitlines()[0]}; give OWNER/NAME"
        ) from error
    if "/" not in repo_id:
        raise UsageError(f"{repo_id!r}: not a repository name: the owner is missing; give OWNER/{repo_id}")
    if branch is not None and (_INVALID_REF.search(branch) or COMMIT.fullmatch(branch)):
        raise UsageError(f"--revision {branch!r}: not a name for a branch; use letters, digits, '.', '_' and '-'")
