"""A blind draw: random classes of packages that nobody has looked at, extracted once, whatever comes out.

    python -m benchmarks.draw SEED [--pool FILE] [--packages 5] [--classes 20]

SEED: hexadecimal digits, as of a commit. FILE lists a package a line. In the order that the seed gives, a package is
taken if no table of the product names it, its newest release can be fetched, and it has so many classes; the others are
printed with the reason. Prints JSON: the releases, how far each class came, and what the whole extraction cost.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.measure import children_cpu
from benchmarks.versus_plain import draw
from extract.model.blocks import read_blocks
from extract.resolve import distributions

_LEMUR = [sys.executable, "-P", "-m", "lemur.start", "extract"]
_RUNS = ("forward", "backward")


def main() -> None:
    """Draw, extract, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=lambda digits: int(digits, 16), help="hexadecimal")
    parser.add_argument("--pool", type=Path, default=Path("../shared/pool.txt"))
    parser.add_argument("--packages", type=int, default=5)
    parser.add_argument("--classes", type=int, default=20, help="of each package")
    given = parser.parse_args()
    named = Path(distributions.__file__).read_text(encoding="utf-8")
    order = [line for line in given.pool.read_text(encoding="utf-8").split("\n") if line and not line.startswith("#")]
    random.Random(given.seed).shuffle(order)
    chosen: list[str] = []
    passed_over: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as work:
        for package in order:
            if len(chosen) == given.packages * given.classes:
                break
            if re.search(rf"(?<![\w-]){re.escape(package)}(?![\w-])", named):
                passed_over[package] = "a table of the product names it"
                continue
            out = Path(work, package)
            command = [*_LEMUR, "--source", package, "--level", "discovered", "--out", str(out)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found = read_blocks(out, ("block",)) if done.returncode == 0 else []
            try:
                chosen += draw(out, given.classes, given.seed) if found else []
            except ValueError:  # fewer than asked for
                found = []
            if not found:
                said = done.stderr.strip().splitlines()
                passed_over[package] = f"fewer than {given.classes} classes" if done.returncode == 0 else said[-1]
        names = Path(work, "names.json")
        names.write_text(json.dumps(chosen), encoding="utf-8")
        sources = [
            part for name in sorted({block.partition("::")[0] for block in chosen}) for part in ("--source", name)
        ]
        before = children_cpu()
        subprocess.run(
            [*_LEMUR, *sources, "--names", str(names), "--out", f"{work}/blocks"], check=True, stdout=sys.stderr
        )
        cpu = children_cpu() - before
        rows = read_blocks(Path(work, "blocks"), ("block", "source", "level", "error"))
    print(json.dumps(describe(given.seed, rows, passed_over) | {"extraction_cpu_seconds": round(cpu)}, indent=1))


def describe(seed: int, rows: list[Any], passed_over: dict[str, str]) -> dict[str, Any]:
    """Return what came out, in all, by package and by class."""
    runs = Counter(row.source for row in rows if row.level in _RUNS)
    return {
        "seed": f"{seed:08x}",
        "classes": len(rows),
        "packages": len({row.source for row in rows}),
        "forward": sum(runs.values()),
        "percent": round(100 * sum(runs.values()) / max(1, len(rows))),
        "executed": sum(row.level in ("executed", "constructed", *_RUNS) for row in rows),
        "forward_by_package": {source: runs[source] for source in sorted({row.source for row in rows})},
        "passed_over": passed_over,
        "blocks": {row.block: row.level + (f": {row.error}" if row.error else "") for row in rows},
    }


if __name__ == "__main__":
    main()
