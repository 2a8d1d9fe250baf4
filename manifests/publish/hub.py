"""Talking to the Hub through its own client, with time limits and further tries of what may pass.

The token comes from the client's login or environment; it is never asked for or looked at here.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from logging import ERROR
from typing import TYPE_CHECKING, Any, TypeVar

from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from manifests.publish.failures import may_pass, said, translated

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")

#: Seconds before the second try, the third, and so on.
DELAYS = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class Hub:
    """How the Hub is reached.

    Args:
        endpoint: its address; by default what the client's environment says.
        answer_seconds: how long to wait for any answer, and for any piece of it.
        sleep: what waits between tries.
    """

    endpoint: str | None = None
    answer_seconds: float = 120.0
    sleep: Callable[[float], None] = time.sleep

    def api(self) -> "HfApi":
        """The Hub's client."""
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.endpoint, library_name="lemur-curator")

    def call(self, what: str, work: Callable[[], T], *, again: str) -> T:
        """What `work` returns, tried again after a growing while as long as its failure may pass.

        Args:
            what: the repository and what is done there, for messages.
            again: what a rerun does, for the message when all tries have failed.

        Raises: RetryableError if the last try failed so too; UserError for every other failure of the Hub.
        """
        for delay in (*DELAYS, None):
            try:
                self.limit_waiting()
                return work()
            except UserError:
                raise
            except Exception as error:
                if delay is None or not may_pass(error):
                    raise translated(what, error, again) from error
                self.wait(what, error, delay)
        raise AssertionError("the last try returns or raises")

    def wait(self, what: str, error: Exception, seconds: float) -> None:
        """Say what went wrong, and sleep before the next try."""
        note(f"{what}: the Hub: {said(error)}; next try in {seconds:.0f} s")
        self.sleep(seconds)

    def limit_waiting(self) -> None:
        """Put our time limit on the client, which makes itself anew after some errors."""
        from huggingface_hub import get_session

        hooks = get_session().event_hooks["request"]
        if not any(isinstance(hook, _Limit) for hook in hooks):
            hooks.append(_Limit(self.answer_seconds))

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """The client without warnings of its own, with bars only on a terminal; our time limit ends with the block."""
        from huggingface_hub import constants, get_session
        from huggingface_hub.utils import logging
        from huggingface_hub.utils.tqdm import (
            are_progress_bars_disabled,
            disable_progress_bars,
            enable_progress_bars,
        )

        forced = constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
        quiet = not (sys.stderr.isatty() or forced or are_progress_bars_disabled())
        level = logging.get_verbosity()
        logging.set_verbosity(ERROR)
        if quiet:
            disable_progress_bars()
        try:
            yield
        finally:
            hooks = get_session().event_hooks["request"]
            hooks[:] = [hook for hook in hooks if not isinstance(hook, _Limit)]
            logging.set_verbosity(level)
            if quiet:
                enable_progress_bars()


@dataclass(frozen=True, slots=True)
class _Limit:
    """Gives a request the time limits that it has not; the client sets none for most of them."""

    seconds: float

    def __call__(self, request: Any) -> None:
        limits = request.extensions.get("timeout", {})
        wanted = {"connect": 10.0, "read": self.seconds, "write": self.seconds, "pool": None}
        request.extensions["timeout"] = {
            key: value if limits.get(key) is None else limits[key] for key, value in wanted.items()
        }
