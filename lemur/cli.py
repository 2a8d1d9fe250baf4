"""The command `lemur`: mounts the packages' commands, and turns failures into one clear line."""

import errno
import importlib.metadata
import os
import signal
import stat
import sys
from types import FrameType
from typing import NoReturn

import typer

import curate.cli
import extract.cli
import manifests.cli
import train.cli
from lemur_core.files.errors import UsageError, UserError

app = typer.Typer(
    name="lemur",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Clean, executable, provenance-tracked PyTorch code: extracted blocks, curated LEMUR snapshots.",
)
app.add_typer(extract.cli.app)
app.add_typer(curate.cli.app)
app.add_typer(train.cli.app)
app.add_typer(manifests.cli.app)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    if version:
        print(f"lemur-curator {importlib.metadata.version('lemur-curator')}")
        raise typer.Exit


class _Interrupted(BaseException):
    """Ctrl-C or a request to end: unwinds everything, so that temporary folders are removed."""

    def __init__(self, status: int) -> None:
        self.status = status


def main() -> NoReturn:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 129, 130 or 143 ended by a signal."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, _hang_up)
    try:
        app()
    except _Interrupted as interrupted:
        _fail(
            "interrupted; nothing half done is in place, what was worked out so far is kept: run again",
            interrupted.status,
        )
    except UserError as error:
        _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone (`| head`): nothing to say, nobody to say it to
        sys.exit(1)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}; no output was written: free space, or choose another place", 1)
    sys.exit(0)


def _fail(message: str, status: int) -> NoReturn:
    print(f"lemur: {message}", file=sys.stderr)
    sys.exit(status)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
    raise _Interrupted(128 + number)


def _hang_up(number: int, _frame: FrameType | None) -> NoReturn:
    """End as by Ctrl-C. Shell and kernel both tell of a closed terminal, and to write to it is an error."""
    signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            os.dup2(null, stream)
    raise _Interrupted(128 + number)


if __name__ == "__main__":
    main()
