"""The command of synthesis: parse, call, print."""

import json
from pathlib import Path
from typing import Annotated

import typer

from lemur.synthesis.options import AttemptOptions, Sampling, Service
from lemur_core.files.markdown import plural
from manifests.options import takes_options

app = typer.Typer()

_PANEL = "Synthesis: specs in, new networks out"
_MODEL, _REQUEST, _RESOURCES = "The model", "The request", "Resources and sandbox"

_Library = Annotated[Path, typer.Option("--in", metavar="LIBRARY", help="An extraction folder.")]
_Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")]
_Model = Annotated[str, typer.Option(metavar="MODEL", help="Its name at --base-url.", rich_help_panel=_MODEL)]
_Against = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel=_REQUEST,
        help="Networks must be new compared with this folder, too (repeatable).",
    ),
]
_License = Annotated[str, typer.Option("--license", metavar="SPDX", help="License of the networks, stated by you.")]
_Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", metavar="N", min=1, rich_help_panel=_RESOURCES, help="Worker processes (default: CPU count)."
    ),
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
    model: _Model,
    service: Service,
    sampling: Sampling,
    options: AttemptOptions,
    against: _Against = None,
    license_: _License = "NOASSERTION",
    jobs: _Jobs = None,
    unsafe_no_sandbox: _Unsafe = False,
    force: _Force = False,
    as_json: _Json = False,
) -> None:
    """Let a language model write networks from specs; keep those that are closed, run, learn, conform, and are new.

    Examples:
      lemur synthesize --in blocks --model Qwen/Qwen2.5-Coder-7B-Instruct --n 100 --out networks
    """
    from lemur.synthesis.loop import run_synthesis  # loads torch
    from manifests.provenance.licenses import NOASSERTION, parse_expression

    license_ = license_ if license_ == NOASSERTION else parse_expression(license_)

    counts = run_synthesis(
        library,
        model,
        out,
        options,
        service,
        sampling=sampling,
        against=against or (),
        license_=license_,
        jobs=jobs,
        unsafe=unsafe_no_sandbox,
        force=force,
    )
    if as_json:
        print(json.dumps({"out": str(out), "counts": counts}, indent=2))
        return
    failed = ", ".join(f"{number} {step}" for step, number in counts["failed"].items())
    tokens = counts["prompt_tokens"] + counts["answer_tokens"]
    print(
        f"{model}: {counts['accepted']} of {plural(counts['attempts'], 'attempt')} accepted,"
        f" {counts['answers']} answers, {tokens:,} tokens" + (f"; failed: {failed}" if failed else "")
    )
    print(f"-> {out / 'report.md'}")
