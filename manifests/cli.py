"""Commands that move finished folders to and from the Hugging Face Hub."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible, plural
from lemur_core.files.progress import note
from manifests.options.shared import JsonOption

if TYPE_CHECKING:
    from manifests.publishing.publish import PublishReport

app = typer.Typer()
_PANEL = "Any folder"


@app.command(rich_help_panel=_PANEL)
def publish(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished folder.")],
    repo_id: Annotated[str, typer.Option("--repo-id", metavar="OWNER/NAME", help="The dataset repository.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all, and only show what would change.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str, typer.Option("--revision", metavar="BRANCH", help="The branch.")] = "main",
    force: Annotated[bool, typer.Option("--force", help="Overwrite changes by somebody else.")] = False,
    not_secret: Annotated[
        list[str] | None,
        typer.Option("--not-secret", metavar="DIGEST", help="The finding of this digest is no secret (repeatable)."),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Also publish the HTML page (index.html, page/).")] = False,
    as_json: JsonOption = False,
) -> None:
    """Put a finished folder on the Hugging Face Hub, in one commit.

    Examples:
      lemur publish snapshot --repo-id OWNER/NAME --dry-run
    """
    from manifests.folders.manifest import read_manifest  # the Hub's client takes 0.4 s to import
    from manifests.interface import load_function
    from manifests.publishing.hub import read_name
    from manifests.publishing.publish import publish as publish_folder

    read_name(repo_id)
    read_manifest(folder)  # reject an invalid folder before the check for a terminal
    if not (dry_run or yes or sys.stdin.isatty()):
        raise UserError("publish: no terminal to confirm on; add --yes, or --dry-run to see what would change")

    def confirm(plan: "PublishReport") -> bool:
        for line in plan.lines():
            note(line)
        print(f"Publish this on {plan.repo_id}? [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    done = publish_folder(
        folder,
        repo_id,
        verify=load_function("verify"),
        revision=revision,
        private=private,
        force=force,
        dry_run=dry_run,
        not_secret=not_secret or (),
        page=page,
        confirm=None if yes or dry_run else confirm,
    )
    if as_json:
        print(json.dumps(done.to_json(), indent=2))
        return
    for line in (*(done.lines() if dry_run or yes else ()), done.summary(dry_run=dry_run)):
        print(make_visible(line))


@app.command(rich_help_panel=_PANEL)
def pull(
    repo_id: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The dataset repository.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.")],
    revision: Annotated[str, typer.Option("--revision", metavar="REV", help="Branch, tag or commit.")] = "main",
    force: Annotated[bool, typer.Option("--force", help="Replace an older folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a published folder and check every file against its manifest.

    Examples:
      lemur pull OWNER/NAME --out snapshot
    """
    from manifests.publishing.publish import format_size
    from manifests.publishing.publish import pull as pull_folder

    done = pull_folder(repo_id, out, revision=revision, force=force)
    if as_json:
        print(json.dumps({"repo_id": repo_id, "commit": done.commit, "files": done.files, "bytes": done.bytes}))
    else:
        size = f"{plural(done.files, 'file')}, {format_size(done.bytes)}"
        print(make_visible(f"{out}: {size}, as the manifest states; commit {done.commit}"))
