"""The options of many commands, which mean the same in each."""

from typing import Annotated

import typer

JobsOption = Annotated[
    int | None, typer.Option("--jobs", metavar="N", min=1, help="Worker processes; default: all cores.")
]
UnsafeOption = Annotated[
    bool, typer.Option("--unsafe-no-sandbox", help="Run foreign code without the sandbox: only code that you trust.")
]
RayOption = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help="A Ray cluster that does the work of --jobs; or auto.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
