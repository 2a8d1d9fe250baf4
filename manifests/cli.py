"""Commands for every folder that this tool writes."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
_PANEL = "Any folder"


@app.command(rich_help_panel=_PANEL)
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished folder.", show_default=False)],
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Worker processes; default: all cores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as one JSON list.")] = False,
) -> None:
    """Re-read a finished folder: digests, schemas, counts, guarantees. Exit 1 when any fails."""
    from manifests.verify import verify_folder

    checks = verify_folder(folder, jobs=jobs)
    if as_json:
        print(json.dumps([{"check": c.name, "ok": c.ok, "detail": c.detail} for c in checks], indent=2))
    else:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.detail}")
    failed = sum(not check.ok for check in checks)
    if failed:
        print(f"lemur: {folder}: {failed} of {len(checks)} checks failed", file=sys.stderr)
        raise typer.Exit(1)


@app.command(rich_help_panel=_PANEL)
def trace(
    wanted: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="A network, block, conversation or run; of a run, also net.", show_default=False
        ),
    ],
    folders: Annotated[
        list[Path],
        typer.Option(
            "--in", metavar="DIR", help="The folder that it is in, then those that was made from.", show_default=False
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the chain as one JSON list.")] = False,
) -> None:
    """Follow one row of a finished folder back to the lines of the release that its code is from."""
    from manifests.trace import trace as trace_row

    chain = trace_row(wanted, folders)
    if as_json:
        print(json.dumps([link.to_json() for link in chain], indent=2))
        return
    for link in chain:
        print("\n".join(link.lines()))


@app.command(rich_help_panel=_PANEL)
def publish(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished folder.", show_default=False)],
    repo_id: Annotated[str, typer.Option("--repo-id", metavar="OWNER/NAME", help="The dataset repository.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be changed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str, typer.Option("--revision", metavar="BRANCH", help="Made when it is missing.")] = "main",
    tag: Annotated[str | None, typer.Option("--tag", help="A name for the commit.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what somebody else changed there.")] = False,
    not_secret: Annotated[
        list[str] | None,
        typer.Option(
            "--not-secret",
            metavar="DIGEST",
            help="What looks like this secret is none; repeatable.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Put a finished folder on the Hugging Face Hub, in one commit."""
    from manifests.publish.command import run_publish

    run_publish(
        folder,
        repo_id,
        revision=revision,
        tag=tag,
        private=private,
        force=force,
        dry_run=dry_run,
        yes=yes,
        not_secret=not_secret or (),
        as_json=as_json,
    )


@app.command(rich_help_panel=_PANEL)
def pull(
    repo_id: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The dataset repository.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.", show_default=False)],
    revision: Annotated[str, typer.Option("--revision", metavar="REV", help="Branch, tag or commit.")] = "main",
    force: Annotated[bool, typer.Option("--force", help="Replace an older folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Fetch a published folder, and check every file against its manifest."""
    from manifests.publish.command import run_pull

    run_pull(repo_id, out, revision=revision, force=force, as_json=as_json)


@app.command(rich_help_panel="The whole way, small")
def run(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write, or to go on in.")] = Path(
        "lemur-run"
    ),
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="CIFAR-10 as for train run, or synthetic; default: from the Hub."),
    ] = None,
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Of the training run.")] = 2,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Images to train on; default: 5,000 at most.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Draws splits, requests, weights, order.")] = 0,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Processes and threads; default: all cores.")
    ] = None,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Run foreign code without walls. Only for code you trust.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Make every stage again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Extract, curate, assemble, train shortly and verify. Run again, it goes on, and makes only what has changed."""
    from lemur.pipeline.command import run_whole
    from lemur.pipeline.plan import quick_plan

    plan = quick_plan(data=data, epochs=epochs, images=limit, seed=seed, jobs=jobs, unsafe=unsafe_no_sandbox)
    run_whole(plan, out, force=force, as_json=as_json)
