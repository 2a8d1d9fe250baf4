"""Commands for every folder that this tool writes."""

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
_PANEL = "Any folder"

#: Who checks a folder, by the kind that its manifest states; named, since this package imports none of them.
_VERIFIERS = {"snapshot": "curate.verify", "extraction": "extract.verify"}


@app.command(rich_help_panel=_PANEL)
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished folder.", show_default=False)],
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Worker processes; default: all cores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as one JSON list.")] = False,
) -> None:
    """Re-read a finished folder: digests, schemas, counts, guarantees. Exit 1 when any fails."""
    from manifests.manifest import read_manifest
    from manifests.verify import Check, check_files

    manifest = read_manifest(folder)
    checks: list[Check]
    if manifest.kind in _VERIFIERS:
        checks = importlib.import_module(_VERIFIERS[manifest.kind]).verify(folder, jobs=jobs)
    else:
        checks = [check_files(folder, manifest)]
    if as_json:
        print(json.dumps([{"check": c.name, "ok": c.ok, "detail": c.detail} for c in checks], indent=2))
    else:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.detail}")
    failed = sum(not check.ok for check in checks)
    if failed:
        print(f"lemur: {folder}: {failed} of {len(checks)} checks failed", file=sys.stderr)
        raise typer.Exit(1)
