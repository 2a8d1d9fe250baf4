"""Commands that move finished folders to and from the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
_PANEL = "Any folder"


@app.command(rich_help_panel=_PANEL)
def publish(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished folder.")],
    repo_id: Annotated[str, typer.Option("--repo-id", metavar="OWNER/NAME", help="The dataset repository.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change; of its checks, only digests are made.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str, typer.Option("--revision", metavar="BRANCH", help="Created if missing.")] = "main",
    tag: Annotated[str | None, typer.Option("--tag", help="A name for the commit.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite changes by somebody else.")] = False,
    not_secret: Annotated[
        list[str] | None,
        typer.Option(
            "--not-secret",
            metavar="DIGEST",
            help="Ignore the secret finding with this digest (false positive); repeatable.",
        ),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Also publish the HTML page (index.html, page/).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Put a finished folder on the Hugging Face Hub, in one commit.

    Examples:
      lemur publish snapshot --repo-id OWNER/NAME --dry-run
    """
    from manifests.publish.command import run_publish

    run_publish(
        folder,
        repo_id,
        verify=context.obj,  # the checks of every kind of folder, passed in from `lemur`
        revision=revision,
        tag=tag,
        private=private,
        force=force,
        dry_run=dry_run,
        yes=yes,
        not_secret=not_secret or (),
        page=page,
        as_json=as_json,
    )


@app.command(rich_help_panel=_PANEL)
def pull(
    repo_id: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The dataset repository.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.")],
    revision: Annotated[str, typer.Option("--revision", metavar="REV", help="Branch, tag or commit.")] = "main",
    force: Annotated[bool, typer.Option("--force", help="Replace an older folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Fetch a published folder and check every file against its manifest.

    Examples:
      lemur pull OWNER/NAME --out snapshot
    """
    from manifests.publish.command import run_pull

    run_pull(repo_id, out, revision=revision, force=force, as_json=as_json)
