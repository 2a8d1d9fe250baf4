"""Sandbox guest: execute the printed call of a block below its file."""

import sys
from functools import partial
from typing import Any

from extract.arguments.messages import CallRequest
from extract.arguments.search_guest import disable_denied
from extract.arguments.trials import AttemptError, attempt, hide, load, seed_all
from lemur_core.sandbox.server.jobs import Failure

_SECONDS = 60.0  # CPU seconds; the limits of the sandbox come first


def run_call(request: CallRequest) -> str | Failure:
    """Execute lines with the names of a file; a placeholder that only annotations use does not count.

    Returns: "ran", or the error.
    """
    disable_denied()
    sys.path += request.folders
    hide(request.origin)
    try:
        module = attempt(partial(load, request.code), _SECONDS)
        names = {name: value for name, value in vars(module).items() if value is not object}
        attempt(partial(_execute, "\n".join(request.lines), names), _SECONDS)
    except AttemptError as failure:
        return Failure(failure.message)
    return "ran"


def _execute(text: str, names: dict[str, Any]) -> None:
    seed_all()
    exec(compile(text, "<call>", "exec"), names)  # noqa: S102 - in the sandbox
