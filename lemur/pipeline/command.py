"""What the command `run` says: a table of the stages, and where to look next."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lemur.pipeline.runner import Done, run_stages
from lemur.pipeline.stages import BLOCKS, SNAPSHOT, Plan, network_facts, plan_stages

_WIDTH = 1_000  # where there is no terminal: nothing is folded


def run_pipeline(plan: Plan, out: Path, *, force: bool = False, as_json: bool = False) -> None:
    """Run every stage that needs it and print what came of it.

    Raises: UserError that names the stage.
    """
    done = run_stages(plan_stages(plan), out, force=force)
    if as_json:
        print(json.dumps(summary(done, out)))
        return
    print_table(done, out)
    print("\n".join(next_lines(out)))


def summary(done: Sequence[Done], out: Path) -> dict[str, Any]:
    """The run as JSON can hold it."""
    stages = [
        {
            "stage": one.stage.name,
            "made": one.why is not None,
            "why": one.why,
            "seconds": one.seconds,
            "where": [str(out / name) for name in one.stage.outputs],
            "counts": dict(one.summary.counts),
        }
        for one in done
    ]
    return {"out": str(out), "seconds": round(sum(one.seconds for one in done), 3), "stages": stages}


def print_table(done: Sequence[Done], out: Path) -> None:
    """The stages, one a row."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    table.add_column("what came out")
    table.add_column("where", overflow="fold")
    for one in done:
        seconds = "kept" if one.why is None else f"{one.seconds:,.1f}"
        table.add_row(one.stage.name, seconds, one.summary.text, str(out / one.stage.outputs[0]))
    width = None if sys.stdout.isatty() else _WIDTH
    Console(file=sys.stdout, width=width, markup=False, highlight=False).print(table)


def next_lines(out: Path) -> list[str]:
    """What to try next, with names that are there."""
    parts = network_facts(out)["ingredients"]
    block = parts[0]["block"] if parts else "NAME"
    return [
        "next:",
        f"  lemur show {block} --in {out / BLOCKS}",
        f'  lemur search "channel attention" --in {out / BLOCKS}',
        f"  lemur publish {out / SNAPSHOT} --repo-id OWNER/NAME --dry-run",
    ]
