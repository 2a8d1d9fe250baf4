"""The command `lemur gate`: it parses, calls and prints."""

import json
from pathlib import Path
from typing import Annotated

import typer

from lemur_core.files.atomic import check_new_file, write_text
from manifests.options.colors import paint_outcomes
from manifests.options.parameters import RuntimeOption

app = typer.Typer()
_PANEL = "LEMUR: contributions"


@app.command(rich_help_panel=_PANEL)
def gate(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="A file, a folder, or commits A..B: what B adds or changes.")
    ],
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="SNAPSHOT",
            help=r"A snapshot, lemur\[@VERSION], or lemur-db\[@VERSION] (repeatable; default: lemur).",
        ),
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option("--sarif", metavar="FILE", help="Also write the findings for code review.")
    ] = None,
    runtime: RuntimeOption = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="N", min=1, help="Worker processes; default: all cores.")
    ] = None,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Run networks without a sandbox. Only for code you trust.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Check a contribution to LEMUR. Exit 0: all files pass; 3: one is refused; 1: failed.

    Examples:
      lemur gate origin/main..HEAD
      lemur gate new/ --against snapshot --sarif findings.sarif
    """
    from lemur.gate.gate import build_json, build_sarif, build_table
    from lemur.gate.gate import gate as check  # loads the networks

    if sarif is not None:
        check_new_file(sarif, "--sarif", force=True)
    report = check(
        paths, against=against or ("lemur",), jobs=jobs, unsafe=unsafe_no_sandbox, runtime=tuple(runtime or ())
    )
    if sarif is not None:
        write_text(sarif, json.dumps(build_sarif(report), indent=2) + "\n")
    print(json.dumps(build_json(report), indent=2) if as_json else paint_outcomes("\n".join(build_table(report))))
    if not report.passed:
        raise typer.Exit(3)
