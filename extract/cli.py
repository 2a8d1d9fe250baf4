"""The commands of extraction: they parse, call and print. Heavy imports wait for the command that needs them."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from extract.model.options import SCOPE, ExtractOptions
from lemur_core.files.atomic import check_free
from manifests.options import takes_options
from manifests.options.shared import ForceOption, JobsOption, JsonOption, RayOption, UnsafeOption

if TYPE_CHECKING:
    from manifests.folders.manifest import Manifest

app = typer.Typer()
_PANEL = "Extract: repositories in, validated blocks out"
_CORPUS = "quick, paper, paper-full or a JSON file; quick when there is no --source."
_SOURCE = r"NAME\[@VERSION] of a released package, git+URL\[@REV], or a folder (./NAME); repeatable."

_Block = Annotated[str, typer.Argument(metavar="BLOCK", help="Block id, qualified or bare name.")]
_Folder = Annotated[Path, typer.Option("--in", metavar="DIR", help="An extraction folder.")]


@app.command(rich_help_panel=_PANEL)
@takes_options
def extract(
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Classes: bare or qualified names, or block ids; default: all in scope."),
    ] = None,
    corpus: Annotated[str | None, typer.Option(metavar="NAME|FILE", help=_CORPUS)] = None,
    source: Annotated[list[str] | None, typer.Option(metavar="SOURCE", help=_SOURCE)] = None,
    options: ExtractOptions,
    names_file: Annotated[
        Path | None, typer.Option("--names", metavar="FILE", help="A JSON list of names.", rich_help_panel=SCOPE)
    ] = None,
    jobs: JobsOption = None,
    ray: RayOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn classes of real repositories into closed, validated files, each with its provenance.

    Examples:
      lemur extract SEModule --source timm@1.0.30 --out blocks
      lemur extract --source ./my-project --symbol '*Attention' --out blocks
    """
    from extract import interface
    from extract.extractor import read_names

    check_free(out, force=force)
    chosen = (*(names or ()), *(read_names(names_file) if names_file else ()))
    library = interface.extract(
        source or (),
        out=out,
        corpus=corpus,
        names=chosen,
        options=options,
        jobs=jobs,
        ray=ray,
        force=force,
        progress=True,
    )
    _print_summary(library.manifest, out, as_json)


def _print_summary(manifest: "Manifest", out: Path, as_json: bool) -> None:
    if as_json:
        json.dump(manifest.model_dump(mode="json"), sys.stdout, sort_keys=True)
        print()
        return
    from extract.folder.page import summary_text

    print(summary_text(manifest, out))


@app.command(rich_help_panel=_PANEL)
def rebuild(
    block: Annotated[
        str,
        typer.Argument(
            metavar="BLOCK|SPEC",
            help="Block id, qualified or bare name; or a file with a line of specs.jsonl.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write.")],
    folder: Annotated[
        Path | None,
        typer.Option("--in", metavar="DIR", help="An extraction folder; not needed for a spec alone."),
    ] = None,
    force: ForceOption = False,
    unsafe_no_sandbox: UnsafeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a block again from its spec alone, and compare outputs, gradients and buffers.

    Examples:
      lemur rebuild SEModule --in blocks --out se_module.py
    """
    from extract.proofs.rebuild import rebuild_to

    print(rebuild_to(folder, block, out, force=force, unsafe=unsafe_no_sandbox, as_json=as_json))


@app.command(rich_help_panel=_PANEL)
def migrate(
    block: _Block,
    folder: _Folder,
    into: Annotated[
        Path,
        typer.Option("--into", metavar="PROJECT/path.py", help="File to write, in an existing project."),
    ],
    full: Annotated[bool, typer.Option("--full", help="Write the closed file, not the minimized one.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file, and write code whose license may not permit it.")
    ] = False,
    unsafe_no_sandbox: UnsafeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put a block's file into another project, and prove that the printed call gives the block's outputs there.

    Examples:
      lemur migrate SEModule --in blocks --into project/layers/se.py
    """
    from extract.migrate import describe
    from extract.migrate import migrate as migrate_block

    facts = migrate_block(folder, block, into, full=full, force=force, unsafe=unsafe_no_sandbox)
    print(json.dumps(facts, sort_keys=True) if as_json else describe(facts))
