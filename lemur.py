"""The command `lemur`: mounts the packages' commands, and turns failures into one clear line."""

import errno
import importlib.metadata
import signal
import sys
from types import FrameType
from typing import NoReturn

import click
import typer

import curate.cli
from manifests.errors import UserError

app = typer.Typer(
    name="lemur",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Clean, executable, provenance-tracked PyTorch code: curated LEMUR snapshots.",
)
app.add_typer(curate.cli.app)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    if version:
        print(f"lemur-curator {importlib.metadata.version('lemur-curator')}")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        status = app(standalone_mode=False)
    except click.exceptions.Abort:
        _fail("interrupted; no output was written, and features worked out so far are cached: run again to go on", 130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except UserError as error:
        _fail(str(error), 1)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror}; no output was written: free some space or choose another place", 1)
    sys.exit(status or 0)


def _fail(message: str, status: int) -> NoReturn:
    print(f"lemur: {message}", file=sys.stderr)
    sys.exit(status)


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(143)  # unwinds the stack, so that temporary folders are removed


if __name__ == "__main__":
    main()
