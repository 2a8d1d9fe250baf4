"""The command of synthesis: parse, call, print."""

from pathlib import Path
from typing import Annotated

import typer

from lemur.synthesis.attempts.options import AttemptOptions, Sampling, Service, ShortTraining
from lemur_core.files.errors import UsageError
from manifests.options.help import CommandLine
from manifests.options.parameters import takes_options
from manifests.provenance.licenses import NOASSERTION, parse_expression

app = CommandLine()

_PANEL = "Synthesis: specs in, new networks out"
_MODEL, _REQUEST, _TRAINED, _RESOURCES = "The model", "The request", "Training", "Resources and sandbox"

_Library = Annotated[Path, typer.Option("--in", metavar="LIBRARY", help="An extraction folder.")]
_Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")]
_Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="A name at --base-url, or NAME@URL; otherwise a folder, GGUF file, package:NAME, or Hub name.",
        rich_help_panel=_MODEL,
    ),
]
_Compare = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL", help="Instead of --model: compare several on the same attempts.", rich_help_panel=_MODEL
    ),
]
_Against = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel=_REQUEST,
        help="Networks must be new compared with this folder, too (repeatable).",
    ),
]
_Train = Annotated[
    int | None, typer.Option("--train", metavar="EPOCHS", min=1, rich_help_panel=_TRAINED, help="Train what passes.")
]
_Data = Annotated[
    str, typer.Option(metavar="SOURCE", rich_help_panel=_TRAINED, help="CIFAR-10 as for train run, or synthetic.")
]
_Limit = Annotated[
    int | None, typer.Option(metavar="N", min=1, rich_help_panel=_TRAINED, help="Number of training images.")
]
_Register = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=_TRAINED, help="Add trained networks to this LEMUR database."),
]
_License = Annotated[str, typer.Option("--license", metavar="SPDX", help="License of the networks, stated by you.")]
_Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, rich_help_panel=_RESOURCES, help="Worker processes (default: CPU count).")
]
_Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe-no-sandbox",
        rich_help_panel=_RESOURCES,
        help="Run foreign code without the sandbox: only code that you trust.",
    ),
]
_Force = Annotated[bool, typer.Option("--force", help="Replace an existing folder.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")]


@app.command(rich_help_panel=_PANEL)
@takes_options
def synthesize(
    *,
    library: _Library,
    out: _Out,
    model: _Model = None,
    compare: _Compare = None,
    service: Service,
    sampling: Sampling,
    options: AttemptOptions,
    against: _Against = None,
    train: _Train = None,
    data: _Data = "hf://datasets/uoft-cs/cifar10",
    limit: _Limit = None,
    register: _Register = None,
    license_: _License = NOASSERTION,
    jobs: _Jobs = None,
    unsafe_no_sandbox: _Unsafe = False,
    force: _Force = False,
    as_json: _Json = False,
) -> None:
    """Let a language model write networks from specs; keep those that are closed, run, learn, conform, and are new.

    Examples:
      lemur synthesize --in blocks --model Qwen/Qwen2.5-Coder-7B-Instruct --n 100 --out networks
    """
    if (model is None) == (not compare):
        raise UsageError("pass --model MODEL, or --compare MODEL at least twice")
    if compare and len(compare) < 2:
        raise UsageError("--compare: pass it at least twice, or only --model")
    if register is not None and train is None:
        raise UsageError("--register: only trained networks are registered; add --train EPOCHS")
    if not options.blocks and not options.goal and options.parents is None:
        raise UsageError("--blocks 0: state what to write with --goal TEXT, or what to change with --parents")
    from lemur.synthesis.command import print_synthesis, run_synthesis  # loads torch

    counts = run_synthesis(
        library,
        [model] if model is not None else list(compare or ()),
        out,
        options,
        service,
        sampling=sampling,
        against=against or (),
        training=ShortTraining(data, train, limit, register) if train is not None else None,
        license_=license_ if license_ == NOASSERTION else parse_expression(license_),
        jobs=jobs,
        unsafe=unsafe_no_sandbox,
        force=force,
    )
    print_synthesis(counts, out, as_json=as_json)
