"""The commands `lemur gate` and `lemur diff`: they parse, call and print."""

import csv
import json
from pathlib import Path
from typing import Annotated

import typer

from lemur_core.files.atomic import atomic_file, check_new_file, write_text
from manifests.options import RUNTIME, takes_options
from manifests.options.shared import ForceOption, JobsOption, JsonOption, UnsafeOption

app = typer.Typer()
_PANEL = "LEMUR: contributions and releases"


@app.command(rich_help_panel=_PANEL)
@takes_options
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
    runtime: Annotated[tuple[str, ...], RUNTIME] = (),
    jobs: JobsOption = None,
    unsafe_no_sandbox: UnsafeOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check a contribution to LEMUR. Exit 0: all files pass; 3: one is refused; 1: failed.

    Examples:
      lemur gate origin/main..HEAD
      lemur gate new/ --against snapshot --sarif findings.sarif
    """
    from lemur.desk.gate import build_json, build_sarif, build_table, is_sarif
    from lemur.desk.gate import gate as check  # loads the networks

    if sarif is not None:
        check_new_file(sarif, "--sarif", force=force or is_sarif(sarif))
    report = check(
        paths,
        against=against or ("lemur",),
        runtime=runtime,
        jobs=jobs,
        unsafe_no_sandbox=unsafe_no_sandbox,
        progress=True,
    )
    if sarif is not None:
        write_text(sarif, json.dumps(build_sarif(report), indent=2) + "\n")
    print(json.dumps(build_json(report), indent=2) if as_json else "\n".join(build_table(report)))
    if not report.passed:
        raise typer.Exit(3)


@app.command(rich_help_panel=_PANEL)
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A snapshot, or a SOURCE of lemur curate.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another one, later.")],
    out: Annotated[
        Path | None, typer.Option("--table", metavar="FILE.csv", help="Also write all changes as a table.")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two corpora or snapshots: networks that are new, gone, renamed or changed, and results that moved.

    Examples:
      lemur diff lemur@2.0.6 lemur@2.1.0
      lemur diff snapshot-2.0 snapshot-2.1 --table changes.csv
    """
    from lemur.desk.diff import Change
    from lemur.desk.diff import diff as compare

    if out is not None:
        check_new_file(out, "--table", force=force)
    difference = compare(before, after, progress=True)
    if out is not None:
        with atomic_file(out) as part, part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([Change._fields, *difference.changes])
    print(
        json.dumps(difference.to_json(), indent=2) if as_json else difference.to_markdown(), end="\n" if as_json else ""
    )
