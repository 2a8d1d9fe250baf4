"""Commands of extraction: parse, call and print. Each command imports its slow dependencies itself."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    """Levels at which blocks can be validated."""

    discovered = "discovered"
    emitted = "emitted"
    parsed = "parsed"
    compiled = "compiled"
    executed = "executed"
    constructed = "constructed"
    forward = "forward"
    backward = "backward"


class IndexPolicy(StrEnum):
    """Treatment of files that are not indexed."""

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
            metavar="NAME|FILE", help="quick, paper, paper-full or a JSON file; default without --source: quick."
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
        str | None, typer.Option(metavar="NAME", help="Skip classes before NAME.", rich_help_panel=_SCOPE)
    ] = None,
    index: Annotated[
        IndexPolicy, typer.Option(help="Parse only missing files, all files again, or none.")
    ] = IndexPolicy.missing,
    level: Annotated[LevelName, typer.Option(help="Highest level at which blocks are validated.")] = LevelName.backward,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run blocks again that failed before.")] = False,
    fidelity: Annotated[
        bool, typer.Option("--fidelity", help="Compare running blocks with the originals, installed separately.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Selects the held-out specs and the wording of conversations.")] = 42,
    chat: Annotated[
        bool, typer.Option("--chat", help="Generate conversations from the facts in the specs.", rich_help_panel=_CHAT)
    ] = False,
    include_code: Annotated[
        bool,
        typer.Option(
            "--include-code",
            help="With --chat: also include code, only of blocks with permissive licences.",
            rich_help_panel=_CHAT,
        ),
    ] = False,
    chat_max_tokens: Annotated[
        int,
        typer.Option("--chat-max-tokens", metavar="N", min=1, help="Omit longer ones.", rich_help_panel=_CHAT),
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
        bool, typer.Option("--unsafe-no-sandbox", help="Run foreign code without a sandbox. Only for code you trust.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace DIR if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Extract classes of repositories into closed, validated files, each with its provenance."""
    from extract.chat.build import ChatOptions
    from extract.extractor import extract_to, read_names
    from extract.model.results import Options
    from extract.resolve.discover import Selection
    from lemur_core.files.atomic import check_free
    from lemur_core.files.errors import UsageError

    if include_code and not chat:
        raise UsageError(
            "--include-code: no conversations are generated without --chat; add --chat, or omit --include-code"
        )
    division = divided(out, executor, tasks, workers, work)
    check_free(out, force=force)
    wanted = (*(names or ()), *(read_names(names_file) if names_file else ()))
    selection = Selection(
        names=wanted,
        repositories=tuple(repo or ()),
        paths=tuple(path or ()),
        symbols=tuple(symbol or ()),
        limit=limit,
        start_from=start_from,
    )
    options = Options(
        corpus=corpus,
        sources=tuple(source or ()),
        selection=selection,
        index=index.value,
        level=level.value,
        retry_failed=retry_failed,
        fidelity=fidelity,
        jobs=jobs,
        unsafe=unsafe_no_sandbox,
        timings=timings,
        seed=seed,
        chat=ChatOptions(seed, chat_max_tokens, include_code) if chat else None,
    )
    if division is None:
        _print_summary(extract_to(out, options, force=force), out, as_json)
        return
    from extract.cluster import extract_in_tasks

    manifest = extract_in_tasks(
        out,
        options,
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
        Path | None,
        typer.Option("--graph", metavar="FILE.svg", help="Also draw its computation graph.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the row as one JSON object.")] = False,
) -> None:
    """Show one block: provenance, level, requirements, code."""
    from extract.model.blocks import draw_block, show_block

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
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Run foreign code without a sandbox. Only for code you trust.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as one JSON object.")] = False,
) -> None:
    """Rebuild a block from its spec alone, and prove that it is equal: outputs, gradients, buffers."""
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
            help="File to write; default: next to the host, HOST-BLOCK.py; in a project, next to similar modules.",
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
        typer.Option("--full", help="Use the full closed file, not the lean form.", rich_help_panel="Into a project"),
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
        bool, typer.Option("--unsafe-no-sandbox", help="Run foreign code without a sandbox. Only for code you trust.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Insert a block, with everything it needs, into another network or project, and prove that the result works."""
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
