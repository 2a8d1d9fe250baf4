"""How many blocks can be written anew from what they compute, and how many of these are equal to their originals.

    python -m benchmarks.rebuild DIR [EVERY] [FIRST]

DIR: an extraction folder. The sample is every EVERY-th block that runs forward, in the order of their ids, from number
FIRST on: drawn by place, before anything of them is seen. Lines are those that are not blank and no comments,
against the lines of the class in its source (what it inherits, and the layers of its own file, not counted).
"""

import argparse
import statistics
from collections import Counter
from pathlib import Path

from extract.blocks import read_rows
from extract.rebuild import COLUMNS, Outcomes, rebuild_rows
from extract.results import at_least


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("every", nargs="?", type=int, default=10)
    parser.add_argument("first", nargs="?", type=int, default=0)
    given = parser.parse_args()
    rows = [row for row in read_rows(given.folder, COLUMNS) if at_least(row["level"], "forward")]
    rows = sorted(rows, key=lambda row: str(row["block"]))[given.first :: given.every]
    lengths = {row["block"]: row["end_line"] - row["start_line"] + 1 for row in rows}
    outcomes = list(rebuild_rows(given.folder, rows))
    written = [one for one in outcomes if "source" in one.found]
    equal = [one for one in outcomes if one.step == "equal"]
    bits = sum(bool(one.found["bits"]) for one in equal)
    free = sum(bool(one.found["free"]) for one in equal)
    ratios = sorted(_lines(one) / lengths[one.block] for one in written)
    print(f"sample        {len(rows)} blocks that run forward: every {given.every}th from number {given.first} on")
    print(f"rebuilt       {len(written)} ({_share(written, rows)})")
    print(f"equal         {len(equal)} ({_share(equal, written)} of these), {bits} in every bit")
    print(f"other sizes   {free} of the equal ones also at sizes that were never traced")
    if ratios:
        above = sum(ratio > 2 for ratio in ratios)
        print(
            f"lines         {statistics.median(ratios):.2f} of the class's in the median; {above} above twice as many"
        )
    for cause, count in Counter(_kind(one) for one in outcomes if one.step != "equal").most_common():
        print(f"miss          {count} {cause}")
    for one in sorted(outcomes, key=lambda one: one.block):
        if one.step != "equal":
            print(f"  {one.block}: {one.cause[:200]}")


def _share(some: list[Outcomes], of: list[Outcomes] | list[dict[str, object]]) -> str:
    return f"{100 * len(some) / max(len(of), 1):.1f} %"


def _lines(one: Outcomes) -> int:
    return sum(bool(line.strip()) and not line.startswith("#") for line in str(one.found["source"]).splitlines())


def _kind(one: Outcomes) -> str:
    """A cause, as a kind of causes."""
    kinds = {"failed": "ended in the sandbox", "defined": "could not be traced", "rebuilt": "not equal"}
    if one.step == "traced":
        return "an operation without public form" if "operation" in one.cause else "what no graph holds"
    return kinds[one.step]


if __name__ == "__main__":
    main()
