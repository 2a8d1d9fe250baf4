"""The commands of curation: they parse, call and print. `curate.interface` is loaded when the first one runs."""

from pathlib import Path
from typing import Annotated

import typer

import curate as package
from curate.model.options import CurateOptions
from manifests.options import RUNTIME, takes_options
from manifests.options.shared import ForceOption, JobsOption, JsonOption, RayOption, UnsafeOption

app = typer.Typer()
_PANEL = "Curate: LEMUR records in, a snapshot out"

_SOURCES = (
    r"lemur\[@VERSION], lemur-db\[@VERSION], a .parquet/.json/.jsonl/.csv/.db/.zst file, a folder of .py"
    " files, or hf://datasets/OWNER/NAME. Also a folder of blocks (records block-ID). Several are read in their order."
)


@app.command(rich_help_panel=_PANEL)
@takes_options
def curate(
    *,
    source: Annotated[list[str], typer.Argument(metavar="SOURCE", help=_SOURCES)],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")],
    options: CurateOptions,
    origins: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="An extraction: say which codes are from its repositories, and under which licenses (repeatable).",
        ),
    ] = None,
    previous: Annotated[
        str | None,
        typer.Option(metavar="SNAPSHOT", help="A snapshot, or hf://…: what it kept stays kept, in its split."),
    ] = None,
    jobs: JobsOption = None,
    ray: RayOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deduplicate, split and explain a corpus of network codes.

    What for? Fine-tuning on code is the default: of similar texts one is kept (of LEMUR 2.1.0's 10,321 codes, 964).
    Architecture search and prediction take --graph keep-different: similar texts stay where graphs differ (6,231).

    Examples:
      lemur curate lemur --out snapshot
      lemur curate networks/ --out snapshot --license MIT --graph off
    """
    snapshot = package.curate(
        source,
        out=out,
        options=options,
        origins=origins or (),
        previous=previous,
        jobs=jobs,
        ray=ray,
        force=force,
        progress=True,
    )
    print(package.interface.summary_text(out, snapshot.manifest, as_json=as_json))


@app.command(rich_help_panel=_PANEL)
@takes_options
def novel(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Python files, each a LEMUR network or a module.")
    ],
    against: Annotated[
        list[str],
        typer.Option("--against", metavar="DIR", help="A snapshot, an extraction, or lemur[@VERSION] (repeatable)."),
    ],
    task: Annotated[str, typer.Option(help="Whose inputs the networks are traced with.")] = "img-classification",
    prm: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Hyperparameters; default: usual ones."),
    ] = None,
    runtime: Annotated[tuple[str, ...], RUNTIME] = (),
    jobs: JobsOption = None,
    unsafe_no_sandbox: UnsafeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Is a network new? Its nearest records and blocks. Exit 0: all files are novel; 3: one is known; 1: failed.

    Examples:
      lemur novel net.py --against snapshot
    """
    novelty = package.interface.novel(
        files, against, task=task, prm=prm, jobs=jobs, unsafe=unsafe_no_sandbox, runtime=runtime
    )
    print(package.interface.novelty_text(novelty, as_json=as_json))
    if novelty["known"]:
        raise typer.Exit(3)
