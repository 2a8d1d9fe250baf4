"""The command of synthesis: parse, call, print."""

from pathlib import Path
from typing import Annotated

import typer

from lemur_core.files.errors import UsageError

app = typer.Typer()

_PANEL = "Synthesis: specs in, new networks out"
_MODEL, _REQUEST, _TRAINED, _RESOURCES = "The model", "The request", "Training", "Resources and sandbox"


@app.command("synthesize", rich_help_panel=_PANEL)
def synthesize_(
    library: Annotated[Path, typer.Option("--in", metavar="LIBRARY", help="An extraction folder.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.", show_default=False)],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A model name at --base-url, or NAME@URL; otherwise a folder or name for transformers.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL", help="Instead of --model: compare several on the same attempts.", rich_help_panel=_MODEL
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="An OpenAI-compatible endpoint, like http://HOST:8000/v1.", rich_help_panel=_MODEL
        ),
    ] = None,
    key_env: Annotated[
        str,
        typer.Option(
            "--key-env", metavar="NAME", help="Environment variable with the endpoint's key.", rich_help_panel=_MODEL
        ),
    ] = "LEMUR_MODEL_KEY",
    temperature: Annotated[
        float, typer.Option(metavar="T", min=0, max=2, rich_help_panel=_MODEL, help="0: the likeliest.")
    ] = 0.7,
    top_p: Annotated[
        float, typer.Option(metavar="P", min=0.01, max=1, rich_help_panel=_MODEL, help="Nucleus sampling (top-p).")
    ] = 0.95,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=16, rich_help_panel=_MODEL, help="Of one answer.")] = 4096,
    token_budget: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, rich_help_panel=_MODEL, help="Token budget of all prompts and answers."),
    ] = None,
    time_budget: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=1, rich_help_panel=_MODEL, help="Time budget for requests in this run."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, rich_help_panel=_MODEL, help="Parallel requests.")
    ] = 4,
    retries: Annotated[
        int, typer.Option(metavar="N", min=0, rich_help_panel=_MODEL, help="Retries after temporary errors.")
    ] = 5,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=86_400, rich_help_panel=_MODEL, help="Of one request.")
    ] = 600.0,
    ask_again: Annotated[
        bool, typer.Option("--ask-again", rich_help_panel=_MODEL, help="Ignore cached answers of earlier runs.")
    ] = False,
    n: Annotated[int, typer.Option("--n", metavar="N", min=1, rich_help_panel=_REQUEST, help="Attempts.")] = 8,
    spec: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_REQUEST, help="Blocks in this file, written by lemur search --spec."
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="QUERY", rich_help_panel=_REQUEST, help="Blocks that match this query.")
    ] = None,
    goal: Annotated[
        str, typer.Option(metavar="TEXT", rich_help_panel=_REQUEST, help="The purpose of the network.")
    ] = "",
    blocks: Annotated[
        int, typer.Option(metavar="K", min=0, max=8, rich_help_panel=_REQUEST, help="Blocks in each network.")
    ] = 1,
    parents: Annotated[
        Path | None,
        typer.Option(
            metavar="SNAPSHOT", rich_help_panel=_REQUEST, help="Request changes to its networks, which the model sees."
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(metavar="R", min=0, max=10, rich_help_panel=_REQUEST, help="Maximum number of repair rounds.")
    ] = 2,
    plan: Annotated[bool, typer.Option("--plan", rich_help_panel=_REQUEST, help="Request a plan first.")] = False,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, rich_help_panel=_REQUEST, help="Seed of blocks and answers.")
    ] = 0,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            rich_help_panel=_REQUEST,
            help="Networks must also be new compared with this folder (repeatable).",
        ),
    ] = None,
    train: Annotated[
        int | None,
        typer.Option("--train", metavar="EPOCHS", min=1, rich_help_panel=_TRAINED, help="Train what passes."),
    ] = None,
    data: Annotated[
        str, typer.Option(metavar="SOURCE", rich_help_panel=_TRAINED, help="CIFAR-10 as for train run, or synthetic.")
    ] = "hf://datasets/uoft-cs/cifar10",
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, rich_help_panel=_TRAINED, help="Number of training images.")
    ] = None,
    register: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=_TRAINED, help="Add trained networks to this LEMUR database."),
    ] = None,
    license_: Annotated[
        str, typer.Option("--license", metavar="SPDX", help="Licence of the networks, stated by you.")
    ] = "NOASSERTION",
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, rich_help_panel=_RESOURCES, help="Worker processes (default: CPU count)."),
    ] = None,
    unsafe_no_sandbox: Annotated[
        bool,
        typer.Option(
            "--unsafe-no-sandbox",
            rich_help_panel=_RESOURCES,
            help="Run foreign code without the sandbox: only code that you trust.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Let a language model write networks from specs; keep those that are closed, run, learn, conform, and are new."""
    if (model is None) == (not compare):
        raise UsageError("pass --model MODEL, or --compare MODEL at least twice")
    if compare and len(compare) < 2:
        raise UsageError("--compare: pass it at least twice, or only --model")
    if register is not None and train is None:
        raise UsageError("--register: only trained networks are registered; add --train EPOCHS")
    if not blocks and not goal and parents is None:
        raise UsageError("--blocks 0: state what to write with --goal TEXT, or what to change with --parents")
    from lemur.synthesis.command import Ask, Service, ShortTraining, print_synthesis, run_synthesis
    from lemur.synthesis.models.model import Sampling
    from lemur.synthesis.prompting.plan import BlockPool
    from manifests.provenance.licenses import NOASSERTION, parse_expression

    counts = run_synthesis(
        library,
        [model] if model is not None else list(compare or ()),
        out,
        Ask(
            BlockPool(spec, search, blocks),
            goal,
            parents,
            n,
            rounds,
            plan,
            seed,
            Sampling(temperature, top_p, max_tokens),
        ),
        Service(base_url, key_env, concurrency, retries, timeout, token_budget, time_budget, ask_again),
        against=against or (),
        training=ShortTraining(data, train, limit, register) if train is not None else None,
        license_=license_ if license_ == NOASSERTION else parse_expression(license_),
        jobs=jobs,
        unsafe=unsafe_no_sandbox,
        force=force,
    )
    print_synthesis(counts, out, as_json=as_json)
