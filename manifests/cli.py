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
    from manifests.publish.verified import verify_folder

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
def publish(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished folder.", show_default=False)],
    repo_id: Annotated[str, typer.Option("--repo-id", metavar="OWNER/NAME", help="The dataset repository.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be changed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str, typer.Option("--revision", metavar="BRANCH", help="Made when it is missing.")] = "main",
    tag: Annotated[str | None, typer.Option("--tag", help="A name for the commit.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what somebody else changed there.")] = False,
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
