"""How many blocks can be written anew from their specs alone, and how many of these are equal to their originals.

    python -m benchmarks.rebuild DIR [EVERY] [FIRST]

DIR: an extraction folder. The sample is every EVERY-th block that runs forward, in the order of their ids, from number
FIRST on: drawn by place, before anything of them is seen. Lines are those that are not blank and no comments,
against the lines of the class in its source (what it inherits, and the layers of its own file, not counted).
"""

import argparse
import statistics
from collections import Counter
from pathlib import Path

from extract.model.blocks import read_blocks
from extract.model.results import at_least
from extract.proofs.rebuild import RebuildAnswer, rebuild_rows
from extract.specs.make import read_specs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("every", nargs="?", type=int, default=10)
    parser.add_argument("first", nargs="?", type=int, default=0)
    given = parser.parse_args()
    rows = read_blocks(given.folder, ("block", "level", "start_line", "end_line"))
    rows = sorted((row for row in rows if at_least(row.level, "forward")), key=lambda row: str(row.block))
    rows = rows[given.first :: given.every]
    lengths = {row.block: row.end_line - row.start_line + 1 for row in rows}
    specs = [spec for spec in read_specs(given.folder, lengths) if spec.algorithm is not None]
    answers = dict(rebuild_rows(given.folder, specs))
    written = {block: answer for block, answer in answers.items() if answer.source is not None}
    equal = [answer for answer in written.values() if answer.proven]
    stated = sum(spec.algorithm is not None and spec.algorithm.rebuilds is True for spec in specs)
    ratios = sorted(_count_lines(answer) / lengths[block] for block, answer in written.items())
    print(f"sample        {len(rows)} blocks that run forward: one in {given.every} from number {given.first} on")
    print(f"written       {len(written)} ({_share(len(written), len(rows))})")
    print(f"equal         {len(equal)} ({_share(len(equal), len(written))} of these), {stated} specs say so")
    print(f"other sizes   {sum(bool(answer.varied) for answer in equal)} of the equal ones compared at several sizes")
    if ratios:
        above = sum(ratio > 2 for ratio in ratios)
        print(
            f"lines         {statistics.median(ratios):.2f} of the class's in the median; {above} above twice as many"
        )
    causes = {row.block: "its spec has no graph" for row in rows}
    causes |= {block: answer.kind for block, answer in answers.items()}
    missed = {block: cause for block, cause in causes.items() if cause != "equal"}
    for cause, count in Counter(missed.values()).most_common():
        print(f"miss          {count} {cause}")
    for block in sorted(missed):
        print(f"  {block}: {answers[block].error[:200] if block in answers else missed[block]}")


def _share(some: int, of: int) -> str:
    return f"{100 * some / max(of, 1):.1f} %"


def _count_lines(answer: RebuildAnswer) -> int:
    return sum(bool(line.strip()) and not line.startswith("#") for line in str(answer.source).splitlines())


if __name__ == "__main__":
    main()
