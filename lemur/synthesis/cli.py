"""The command of synthesis: parse, call, print."""

import json
from pathlib import Path
from typing import Annotated

import typer

from lemur.synthesis import AttemptOptions, Sampling, Service
from lemur_core.files.markdown import plural
from manifests.options import takes_options
from manifests.options.shared import ForceOption, JsonOption

app = typer.Typer()


@app.command(rich_help_panel="Synthesis: specs in, new networks out")
@takes_options
def synthesize(
    *,
    library: Annotated[Path, typer.Option("--in", metavar="LIBRARY", help="An extraction folder.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="Its name at --base-url.", rich_help_panel="The model")],
    service: Service,
    sampling: Sampling,
    options: AttemptOptions,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a language model write networks from specs; keep those that are closed, run, learn, conform, and are new.

    Examples:
      lemur synthesize --in blocks --model Qwen/Qwen2.5-Coder-7B-Instruct --n 100 --out networks
    """
    from lemur.synthesis.loop import run_synthesis  # loads torch

    counts = run_synthesis(library, model, out, options, service, sampling=sampling, force=force)
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
