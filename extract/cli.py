"""The commands of extraction: they parse, call and print. Heavy imports wait for the command that needs them."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.in_tasks import ExecutorOption, TasksOption, WorkersOption, WorkOption, divided

if TYPE_CHECKING:
    from manifests.folders.manifest import Manifest

app = typer.Typer()
_PANEL = "Extract: repositories in, validated blocks out"
_SCOPE = "Scope (nothing is indexed again)"
_CHAT = "Conversations to fine-tune on"
_SOURCE = r"NAME\[@VERSION] of a released package, git+URL\[@REV], or a folder (./NAME); repeatable."


class LevelName(StrEnum):
    """The rungs that blocks can be taken to."""

    discovered = "discovered"
    emitted = "emitted"
    parsed = "parsed"
    compiled = "compiled"
    executed = "executed"
    constructed = "constructed"
    forward = "forward"
    backward = "backward"


class IndexPolicy(StrEnum):
    """What becomes of files that are not indexed."""

    missing = "missing"
    force = "force"
    skip = "skip"


@app.command(rich_help_panel=_PANEL)
def extract(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.", show_default=False)],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Classes: bare or qualified names, or block ids; default: all in scope."),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="quick, paper, paper-full or a JSON file; quick when there is no --source."
        ),
    ] = None,
    source: Annotated[list[str] | None, typer.Option(metavar="SOURCE", help=_SOURCE)] = None,
    repo: Annotated[
        list[str] | None,
        typer.Option(metavar="R", help="Only classes of this source (repeatable).", rich_help_panel=_SCOPE),
    ] = None,
    path: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Only classes in these files or folders (repeatable).", rich_help_panel=_SCOPE
        ),
    ] = None,
    symbol: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Only names like this: '*Attention' (repeatable).", rich_help_panel=_SCOPE
        ),
    ] = None,
    names_file: Annotated[
        Path | None, typer.Option("--names", metavar="FILE", help="A JSON list of names.", rich_help_panel=_SCOPE)
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most N.", rich_help_panel=_SCOPE)] = None,
    start_from: Annotated[
        str | None, typer.Option(metavar="NAME", help="Leave out what comes before NAME.", rich_help_panel=_SCOPE)
    ] = None,
    index: Annotated[
        IndexPolicy, typer.Option(help="Parse what is missing, everything anew, or nothing.")
    ] = IndexPolicy.missing,
    level: Annotated[LevelName, typer.Option(help="The rung to take blocks to.")] = LevelName.backward,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run again what failed before.")] = False,
    fidelity: Annotated[
        bool, typer.Option("--fidelity", help="Compare what runs with the originals, installed apart.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Draws which specs are held out, and the wording of conversations.")] = 42,
    chat: Annotated[
        bool, typer.Option("--chat", help="Make conversations from the specs' facts.", rich_help_panel=_CHAT)
    ] = False,
    include_code: Annotated[
        bool,
        typer.Option(
            "--include-code",
            help="With --chat: also ask for code; only of blocks under permissive licences.",
            rich_help_panel=_CHAT,
        ),
    ] = False,
    chat_max_tokens: Annotated[
        int,
        typer.Option("--chat-max-tokens", metavar="N", min=1, help="Leave out longer ones.", rich_help_panel=_CHAT),
    ] = 8192,
    executor: ExecutorOption = None,
    tasks: TasksOption = None,
    workers: WorkersOption = None,
    work: WorkOption = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Worker processes; default: all cores.")] = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Write each block's seconds into the table (its bytes then vary).")
    ] = False,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Execute foreign code without walls. Only for code you trust.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace DIR when it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Turn classes of real repositories into closed, validated files, each with its provenance."""
    from extract import interface
    from extract.extractor import read_names
    from lemur_core.files.atomic import check_free

    options = interface.ExtractOptions(
        repositories=tuple(repo or ()),
        paths=tuple(path or ()),
        symbols=tuple(symbol or ()),
        limit=limit,
        start_from=start_from,
        index=index.value,
        level=level.value,
        retry_failed=retry_failed,
        fidelity=fidelity,
        seed=seed,
        chat=chat,
        include_code=include_code,
        chat_max_tokens=chat_max_tokens,
        timings=timings,
        unsafe_no_sandbox=unsafe_no_sandbox,
    )
    division = divided(out, executor, tasks, workers, work)
    check_free(out, force=force)
    chosen = (*(names or ()), *(read_names(names_file) if names_file else ()))
    run: dict[str, Any] = {"corpus": corpus, "names": chosen, "options": options, "jobs": jobs}
    if division is None:
        library = interface.extract(source or (), out=out, **run, force=force, progress=True)
        _print_summary(library.manifest, out, as_json)
        return
    from extract.cluster import extract_in_tasks

    manifest = extract_in_tasks(
        out,
        interface.plan_extraction(source or (), **run),
        division.executor.value,
        tasks=division.tasks,
        workers=division.workers,
        work=division.work,
        force=force,
    )
    if manifest is not None:
        _print_summary(manifest, out, as_json)


def _print_summary(manifest: "Manifest", out: Path, as_json: bool) -> None:
    if as_json:
        json.dump(manifest.model_dump(mode="json"), sys.stdout, sort_keys=True)
        print()
        return
    from extract.folder.report import summary_text

    print(summary_text(manifest, out))


@app.command(rich_help_panel=_PANEL)
def show(
    block: Annotated[
        str, typer.Argument(metavar="BLOCK", help="Block id, qualified or bare name.", show_default=False)
    ],
    folder: Annotated[Path, typer.Option("--in", metavar="DIR", help="An extraction folder.", show_default=False)],
    graph: Annotated[
        Path | None, typer.Option("--graph", metavar="FILE.svg", help="Also draw what it computes.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the row as one JSON object.")] = False,
) -> None:
    """Show one block: provenance, how far it came, what it needs, its code."""
    from extract.model.blocks import show_block
    from extract.model.specs import draw_block

    if graph is not None:
        print(draw_block(folder, block, graph), file=sys.stderr)
    show_block(folder, block, as_json=as_json)


@app.command(rich_help_panel=_PANEL)
def rebuild(
    block: Annotated[
        str,
        typer.Argument(
            metavar="BLOCK|SPEC",
            help="Block id, qualified or bare name; or a file with a line of specs.jsonl.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write.", show_default=False)],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--in", metavar="DIR", help="An extraction folder; not needed for a spec alone.", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE when it exists.")] = False,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Execute foreign code without walls. Only for code you trust.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was compared as one JSON object.")] = False,
) -> None:
    """Write a block anew from its spec alone, and prove that it is equal: outputs, gradients, buffers."""
    from extract.proofs.rebuild import rebuild_to

    print(rebuild_to(folder, block, out, force=force, unsafe=unsafe_no_sandbox, as_json=as_json))


_NETWORKS = "Into a network"


@app.command(rich_help_panel=_PANEL)
def migrate(
    block: Annotated[
        str, typer.Argument(metavar="BLOCK", help="Block id, qualified or bare name.", show_default=False)
    ],
    into: Annotated[
        Path,
        typer.Option(
            "--into",
            metavar="NET.py|PROJECT",
            help="A file with class Net, by LEMUR's contract, or the folder of a Python project.",
            show_default=False,
        ),
    ],
    folder: Annotated[Path, typer.Option("--in", metavar="DIR", help="An extraction folder.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="NEW.py",
            help="File to write; default: next to the host, HOST-BLOCK.py; in a project, beside modules of its kind.",
        ),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            metavar="SITE",
            help="after:PATH, replace:PATH or PATH of a submodule; default: the best one that can be proved.",
            rich_help_panel=_NETWORKS,
        ),
    ] = None,
    show_sites: Annotated[
        bool,
        typer.Option("--list", help="Only show all sites, with shapes and reasons.", rich_help_panel=_NETWORKS),
    ] = False,
    prm: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Hyperparameters of the network; default: usual ones.", rich_help_panel=_NETWORKS
        ),
    ] = None,
    in_shape: Annotated[
        str | None,
        typer.Option(
            metavar="NxCxHxW",
            help="Of a batch; default: the first size of 64, 32, 224, 299.",
            rich_help_panel=_NETWORKS,
        ),
    ] = None,
    classes: Annotated[int, typer.Option(metavar="N", min=1, help="Of images.", rich_help_panel=_NETWORKS)] = 10,
    full: Annotated[
        bool,
        typer.Option("--full", help="The whole closed file, not the lean form.", rich_help_panel="Into a project"),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the difference, write nothing.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace what exists; into a project, also what it has already or no permissive licence lets go.",
        ),
    ] = False,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Execute foreign code without walls. Only for code you trust.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Put a block, with everything it needs, into another network or project, and prove that all of it works."""
    from extract.migrate.network.command import Options, list_sites, migrate_into_network
    from lemur_core.files.errors import UsageError

    if into.is_dir():
        if site or show_sites or prm or in_shape:
            raise UsageError(f"--into {into}: is a project; --site, --list, --prm and --in-shape are for networks")
        from extract.migrate.project import project

        print(
            project.migrate_into_project(
                folder, block, into, project.Options(out, full, dry_run, force, unsafe_no_sandbox, as_json)
            )
        )
        return
    if full:
        raise UsageError("--full: is for projects; into a network the full form goes where the lean one does not do")
    if show_sites and (site or out or dry_run):
        raise UsageError("--list: writes nothing; leave out --site, --out and --dry-run")
    options = Options(out, site, dry_run, force, prm, in_shape, classes, unsafe_no_sandbox, as_json)
    run = list_sites if show_sites else migrate_into_network
    print(run(folder, block, into, options))
