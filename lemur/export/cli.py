"""The command `lemur export`: it parses, calls and prints."""

import json
from pathlib import Path
from typing import Annotated

import typer

from lemur.export import ExportForm
from lemur_core.files.markdown import make_visible, plural
from manifests.options.shared import ForceOption, JobsOption, JsonOption, UnsafeOption

app = typer.Typer()


@app.command(rich_help_panel="Any folder")
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished folder.")],
    form: Annotated[ExportForm, typer.Option("--format", help="The form to write.")],
    out: Annotated[Path, typer.Option("--out", metavar="OUT", help="The folder to write.")],
    jobs: JobsOption = None,
    unsafe_no_sandbox: UnsafeOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a folder in the form of other tools, without code that may not be redistributed.

    Examples:
      lemur export blocks --format kernelbench --out problems
      lemur export snapshot --format prompt-completion --out prompts
    """
    from lemur.export.command import export_folder  # loads the tables

    report = export_folder(folder, form, out, force=force, jobs=jobs, unsafe=unsafe_no_sandbox)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    for name, rows in report["rows"].items():
        print(f"{plural(rows, 'row'):>12}  {name}")
    for reason, number in report["skipped"].items():
        print(make_visible(f"{number:>12,}  left out: {reason}"))
    if withheld := report["withheld"]:
        print(f"{withheld:>12,}  left out: the license does not permit redistribution")
    print(make_visible(f"written to {out}"))
