"""The command `lemur`: mounts the packages' commands, and reports each failure in one clear line."""

import contextlib
import errno
import gc
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import tempfile
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperGroup

import curate.cli
import extract.cli
import lemur.desk.cli
import lemur.experts.cli
import lemur.export.cli
import lemur.synthesis.cli
import manifests.cli
import train.cli
from lemur.rooms import VARIABLE, bound_cache, find_rooms, measure_rooms, read_ceiling
from lemur.rooms import prune as prune_rooms
from lemur_core.files.atomic import remove_dead
from lemur_core.files.cache import cache_folder, uses_rooms
from lemur_core.files.errors import DamagedError, UsageError, UserError
from lemur_core.files.foreign import check_name, check_plain
from lemur_core.files.markdown import make_visible
from lemur_core.files.progress import hide_progress, note
from lemur_core.sandbox.server.jobs import OWN_PACKAGES
from lemur_core.sandbox.server.processes import remove_folder
from manifests.options.shared import ForceOption, JobsOption, JsonOption, UnsafeOption

_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A finished folder.")]

# Commands import what they call by themselves: torch and the tables take seconds, which `--help` does not need.
_EXTRACT = "Extract: repositories in, validated blocks out"

#: The exception of Typer for an invalid command line: click's class, or since 0.26 its own copy of it.
_WrongLine = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])

#: The commands in the order of --help: as a newcomer would use them.
_ORDER = (
    *("demo", "extract", "show", "search", "rebuild", "migrate", "curate", "novel", "gate", "diff"),
    *("train", "synthesize", "experts", "verify", "open", "list", "export"),
    *("publish", "pull", "doctor", "cache"),
)


class _InOrder(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        # A command that is not listed comes last.
        return sorted(super().list_commands(ctx), key=lambda name: _ORDER.index(name) if name in _ORDER else 99)


app = typer.Typer(
    name="lemur",
    cls=_InOrder,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Clean, executable, provenance-tracked PyTorch code: extracted blocks, curated LEMUR snapshots.",
    epilog="The paper: https://arxiv.org/abs/2512.04329. LEMUR: https://github.com/ABrain-One/nn-dataset.",
)
app.add_typer(extract.cli.app)
app.add_typer(curate.cli.app)
app.add_typer(lemur.desk.cli.app)
app.add_typer(train.cli.app)
app.add_typer(lemur.synthesis.cli.app)
app.add_typer(lemur.export.cli.app)
app.add_typer(
    lemur.experts.cli.app, name="experts", rich_help_panel="Knowledge: facts about blocks for a frozen language model"
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Hide progress and warnings; print results and errors."),
) -> None:
    if version:
        print(f"lemur-curator {importlib.metadata.version('lemur-curator')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)
    if quiet:
        context.with_resource(hide_progress())


@app.command(rich_help_panel="Any folder")
def verify(
    folder: _Folder,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a finished folder: digests, schemas, counts, guarantees. Exits 1 if a check fails.

    Examples:
      lemur verify snapshot
    """
    from lemur.folders import verify_folder

    checks = verify_folder(folder, jobs=jobs)
    if as_json:
        print(json.dumps([{"check": c.name, "ok": c.ok, "done": c.done, "detail": c.detail} for c in checks], indent=2))
    else:
        for check in checks:
            outcome = ("ok  " if check.done else "skip") if check.ok else "FAIL"
            print(make_visible(f"{outcome}  {check.name}: {check.detail}"))
    failed = sum(not check.ok for check in checks)
    if failed:
        print(make_visible(f"lemur: {folder}: {failed} of {len(checks)} checks failed"), file=sys.stderr)
        raise typer.Exit(1)


@app.command("open", rich_help_panel="Any folder")
def open_(
    folder: _Folder,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page, or only print its path.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Open the page of a finished folder in the browser; it needs no network and no server.

    Examples:
      lemur open snapshot
    """
    from lemur.pages import find_page

    page = find_page(folder).resolve()
    print(json.dumps({"page": str(page)}) if as_json else page)
    if browser and not webbrowser.open(page.as_uri()):
        note("no browser is available; open that file in one")


@app.command("list", rich_help_panel="Any folder")
def list_(
    folder: _Folder,
    pattern: Annotated[str, typer.Argument(metavar="GLOB", help="Only matching names: '*Attention'.")] = "*",
    as_json: JsonOption = False,
) -> None:
    """List the items of a finished folder: blocks, kept records, runs, accepted networks.

    Examples:
      lemur list blocks '*Attention*'
      lemur list snapshot 'ga-*' --json
    """
    from lemur.folders import list_items

    items = list_items(folder, pattern)
    if as_json:
        print(json.dumps([{"name": item.names[0], **item.facts} for item in items], indent=2))
        return
    rows = [[item.names[0], *(_shorten(value) for value in item.facts.values())] for item in items]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print(make_visible(line.rstrip()))


def _shorten(value: object) -> str:
    """Return a fact as a cell of a table: digests by their first digits, numbers by four decimals."""
    if isinstance(value, float):
        return f"{value:.4f}"
    text = ", ".join(value) if isinstance(value, list | tuple) else "" if value is None else str(value)
    return text[:16] if re.fullmatch("[0-9a-f]{64}", text) else text


@app.command(rich_help_panel="Any folder")
def show(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A network, block, conversation or run; or an assembled network's file."),
    ],
    folders: Annotated[
        list[Path] | None,
        typer.Option("--in", metavar="DIR", help="The folder with the item, then the folders it was built from."),
    ] = None,
    graph: Annotated[
        Path | None, typer.Option("--graph", metavar="FILE.svg", help="Also draw what it computes.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one item of a folder: what it is, why it was kept, removed or failed, and where it is from.

    Examples:
      lemur show SEModule --in blocks
      lemur show ga-667 --in snapshot
    """
    from lemur.folders import print_item
    from lemur.folders import show as find

    item = find(name, folders or ())
    if graph is not None:
        if item.draw is None:
            raise UserError(f"{name}: has no graph to draw")
        note(item.draw(graph))
    print_item(item, as_json=as_json, drawn=graph)


@app.command(rich_help_panel="The full pipeline, small")
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write, or to resume.")] = Path(
        "lemur-demo"
    ),
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="CIFAR-10 as for train run, or synthetic (default: from the Hub)."),
    ] = None,
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Epochs of the training run.")] = 2,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Training images (default: at most 5,000).")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of splits, requests, weights and order.")] = 0,
    jobs: JobsOption = None,
    unsafe_no_sandbox: UnsafeOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Extract, curate, assemble, train briefly and verify. The same command again resumes.

    Examples:
      lemur demo --out demo
    """
    from lemur.demo import print_demo, quick_plan

    plan = quick_plan(data=data, epochs=epochs, images=limit, seed=seed, jobs=jobs, unsafe=unsafe_no_sandbox)
    print_demo(plan, out, force=force, as_json=as_json)


app.add_typer(manifests.cli.app)


@app.command(rich_help_panel=_EXTRACT)
def search(
    folder: Annotated[Path, typer.Option("--in", metavar="DIR", help="An extraction folder.")],
    query: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY", help="Words: names, layers, or what a block does.")
    ] = None,
    count: Annotated[int, typer.Option("-k", metavar="N", min=1, help="Hits at most.")] = 10,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="BLOCK|NET.py",
            help="Search by graph and code instead of words: blocks that are like this block of DIR or this network.",
        ),
    ] = None,
    unsafe_no_sandbox: UnsafeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search blocks by words about what they are and do, or by the graph and code of another one (--like).

    Examples:
      lemur search channel attention --in blocks
      lemur search --like SEModule --in blocks
    """
    if bool(query) == (like is not None):
        raise UsageError("give either words to search for or --like")
    if like is not None:
        from lemur.like import search_like

        print(search_like(folder, like, count=count, unsafe=unsafe_no_sandbox, as_json=as_json))
    else:
        from extract.search import search_folder

        print(search_folder(folder, " ".join(query or ()), count=count, as_json=as_json))


_MACHINE = "This machine"


@app.command(rich_help_panel=_MACHINE)
def doctor(
    as_json: JsonOption = False,
) -> None:
    """Check the environment and say how to fix it. Exits 1 if a command would fail.

    Examples:
      lemur doctor
    """
    from lemur.doctor import Diagnosis, examine

    findings: list[Diagnosis] = []
    for diagnosis in examine():
        findings.append(diagnosis)
        if not as_json:
            print(f"{diagnosis.state:<4}  {diagnosis.what}: {diagnosis.detail}", flush=True)
    if as_json:
        print(json.dumps([asdict(diagnosis) for diagnosis in findings], indent=2))
    failed = [diagnosis.what for diagnosis in findings if diagnosis.state == "FAIL"]
    if failed:
        print(f"lemur: commands will fail for: {', '.join(failed)}", file=sys.stderr)
        raise typer.Exit(1)


@app.command(rich_help_panel=_MACHINE)
def cache(
    rooms: Annotated[
        list[str] | None, typer.Argument(metavar="ROOM", help="Cache namespaces to show or prune (default: all).")
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Remove them; they are rebuilt when needed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the caches, their sizes and the ceiling (LEMUR_CURATOR_CACHE_GIB); with --prune, remove them.

    Examples:
      lemur cache sources --prune
    """
    ceiling, chosen = read_ceiling(), find_rooms(rooms or ())
    freed, in_use = 0, list[str]()
    sizes = measure_rooms(chosen)
    if prune:
        freed, in_use = prune_rooms(chosen)
    folder = str(cache_folder())
    if as_json:
        facts = [{"name": name, "size": size, "files": files} for name, (size, files) in sizes.items()]
        summary = {"folder": folder, "ceiling": ceiling, "freed": freed, "in_use": in_use, "rooms": facts}
        print(json.dumps(summary, indent=2))
    elif prune:
        print(f"{freed / 2**20:,.1f} MiB freed in {folder}")
    else:
        for name, (size, files) in sizes.items():
            print(f"{name:<12}{size / 2**20:>12,.1f} MiB  {files:>9,} files")
        bound = "no ceiling" if ceiling is None else f"ceiling {ceiling / 2**30:.3g} GiB"
        print(f"{'all':<12}{sum(size for size, _ in sizes.values()) / 2**20:>12,.1f} MiB  in {folder} ({bound})")
    if in_use:
        note(f"{', '.join(in_use)}: used by another command, so not removed")


def run() -> int:
    """Run the command line, for `lemur.start.main`: every error but a signal is reported as one line on stderr.

    Returns: the exit status.
    """
    gc.set_threshold(100_000, 10, 10)  # tables and graphs are many small objects and hold no cycles
    try:
        _check_names()
        read_ceiling()
        remove_dead(Path(tempfile.gettempdir()), remove_folder)
        status = _run_command()
        _bound_cache()
    except _WrongLine as error:
        from pydantic import ValidationError

        if isinstance(error.__cause__, ValidationError):  # Typer reads numbers with Pydantic
            from manifests.records import describe_fault

            error.message = describe_fault(error.__cause__.errors()[0])
        message = " ".join(error.format_message().split())
        if not message:  # no command: Typer has printed the help
            sys.exit(2)
        where = error.ctx.command_path if error.ctx is not None else "lemur"
        _fail(f"{message}{'' if message.endswith(('.', '?')) else '.'} See {where} --help", 2)
    except UserError as error:
        _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", *OWN_PACKAGES) or importlib.util.find_spec(package) is not None:
            raise
        _fail(f"{package} is not installed here, which this command needs; `pip install lemur-curator` brings it", 1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has exited (`| head`)
        sys.exit(1)
    except OSError as error:
        # Paths that no folder can hold, and full or read-only disks, are for the user to change; anything else is our
        # fault.
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
            _fail(f"{str(error.filename)[:80]}: {error.strerror}; give another path", 1)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        where = f"{error.filename}: " if error.filename else ""
        if os.access(error.filename or "", os.F_OK) and not os.access(error.filename, os.R_OK):
            _fail(f"{where}cannot be read: {error.strerror}; make it readable", 1)
        _fail(f"{where}{error.strerror or error}; nothing unfinished was left: free space, or choose another folder", 1)
    return status or 0


def _run_command() -> Any:
    dropped: set[str] = set()
    while True:
        try:
            return app(prog_name="lemur", standalone_mode=False)
        except DamagedError as error:  # what was damaged is gone, so another run makes it again
            if str(error) in dropped:
                raise
            dropped.add(str(error))


def _bound_cache() -> None:
    """Remove leftovers of killed commands from the cache, and the oldest entries if it has grown too large."""
    with contextlib.suppress(OSError):  # the work is done
        if not uses_rooms():
            return
        for room in find_rooms():
            remove_dead(room)
        freed = bound_cache(read_ceiling())
        if freed:
            note(f"cache: {freed / 2**20:,.1f} MiB that were not used for long removed; {VARIABLE} sets the ceiling")


def _check_names() -> None:
    """Check the names that results may hold, before any work, and that none of them is a pipe or a device.

    Raises: UserError if one is not UTF-8, or cannot be read or written as a file.
    """
    for argument in (*sys.argv[1:], os.environ.get("LEMUR_CURATOR_CACHE", "")):
        check_name(argument)
        check_plain(Path(argument.partition("=")[2] if argument.startswith("--") else argument), inside=False)
    with contextlib.suppress(FileNotFoundError):  # the working folder was removed
        check_name(Path.cwd())


def _fail(message: str, status: int) -> NoReturn:
    print(f"lemur: {make_visible(message)}", file=sys.stderr)
    sys.exit(status)
