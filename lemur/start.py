"""The command's entry: from its first line on, also while the commands are imported, a signal ends it with one line."""

import os
import stat
import sys

TYPE_CHECKING = False  # until `main` runs, Ctrl-C is a traceback, so this file imports as little as it can
if TYPE_CHECKING:
    import signal
    from types import FrameType
    from typing import NoReturn
else:
    import _signal as signal  # which `signal` wraps in enumerations; importing these takes longer than all the rest


class Interrupted(BaseException):
    """Ctrl-C or a termination signal: unwinds the stack, so that temporary folders are removed."""

    def __init__(self, status: int) -> None:
        self.status = status


def main() -> "NoReturn":
    """Run the command line. Every error is reported as one line on stderr.

    Exit codes: 0 done, 1 failed, 2 wrong usage (`UsageError`: invalid whatever files exist), 3 not novel (`novel`)
    or refused (`gate`), 129, 130 or 143 ended by a signal.
    """
    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: interrupt}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        handlers[signal.SIGHUP] = hang_up
    try:
        try:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            sys.unraisablehook = deliver_again
            from lemur.cli import run  # takes a second

            status = run()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):  # nothing is left to remove
                signal.signal(number, signal.SIG_DFL)
    except Interrupted as interrupted:
        outcome = "its output, if any, is whole or absent: run again, what is cached is used"
        print(f"lemur: interrupted; {outcome}", file=sys.stderr)
        status = interrupted.status
    sys.exit(status)


def interrupt(number: int, _frame: "FrameType | None") -> "NoReturn":
    """Handle a signal: raise `Interrupted`. A second one ends the process at once."""
    signal.signal(number, signal.SIG_DFL)
    raise Interrupted(128 + number)


def deliver_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Deliver a signal once more that came while Python ran a `__del__`, where exceptions are ignored."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)
        return
    import threading

    number = unraisable.exc_value.status - 128
    signal.signal(number, hang_up if number == signal.SIGHUP else interrupt)
    threading.Timer(0.05, os.kill, (os.getpid(), number)).start()  # not within this `__del__`


def hang_up(number: int, _frame: "FrameType | None") -> "NoReturn":
    """Exit as for Ctrl-C, but silently: writing to a closed terminal is an error. Shell and kernel may both signal."""
    signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            os.dup2(null, stream)
    raise Interrupted(128 + number)


if __name__ == "__main__":
    main()
