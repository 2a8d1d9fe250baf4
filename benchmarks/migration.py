"""How many blocks are proven in other people's projects: drawn by a seed, each written into a copy of each project.

    python -m benchmarks.migration BLOCKS PROJECT... [--blocks 5] [--seed 0] [--record FILE.json]

BLOCKS: an extraction folder; drawn are blocks that run and whose license permits it. PROJECT: the folder of a package
in an unpacked sdist or wheel: the file goes there, as `layers_drawn/NAME.py`.
"""

import argparse
import json
import platform
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from extract.migrate import find_project, migrate
from extract.model.blocks import iterate_blocks
from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.sandbox.runtime import find_runtime
from manifests.provenance.licenses import is_permissive

_COLUMNS = ("block", "level", "license", "lean_license")


def draw(blocks: Path, count: int, seed: int) -> list[str]:
    """Draw the blocks."""
    rows = [row for row in iterate_blocks(blocks, _COLUMNS) if row.level in ("forward", "backward")]
    free = sorted(row.block for row in rows if is_permissive(row.lean_license or row.license))
    return random.Random(seed).sample(free, min(count, len(free)))


def attempt(blocks: Path, block: str, project: str, into: Path) -> dict[str, Any]:
    """Migrate one block, and say what was proven or why not."""
    started = time.monotonic()
    result: dict[str, Any] = {"project": project, "block": block}
    try:
        proof = migrate(blocks, block, into)["proof"]
        result |= {"outcome": "proven in its place" if proof["not_imported"] else "proven", **proof}
    except UserError as error:
        result |= {"outcome": "not proven", "error": str(error)}
    return result | {"seconds": round(time.monotonic() - started, 1)}


def make_record(drawn: Sequence[str], seed: int, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts with what they hold for."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    by_project: dict[str, dict[str, str]] = {result["project"]: {} for result in results}
    for result in results:
        why = result.get("error") or result["not_imported"]
        by_project[result["project"]][result["block"]] = result["outcome"] + (f": {why}" if why else "")
    return {
        "command": f"python -m benchmarks.migration BLOCKS PROJECT... --blocks {len(drawn)} --seed {seed}",
        "versions": {name: find_runtime().versions[name] for name in ("torch", "torchvision", "numpy")},
        "python": platform.python_version(),
        "processor": next((text for text in cpu if text.startswith("model name")), "").partition(":")[2].strip(),
        "median_seconds": median(result["seconds"] for result in results),
        "counts": Counter(result["outcome"] for result in results),
        "results": by_project,
    }


def main() -> None:
    """Try every drawn block in every project, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, metavar="BLOCKS")
    parser.add_argument("projects", type=Path, nargs="+", metavar="PROJECT")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    drawn = draw(options.library, options.blocks, options.seed)
    results = []
    for package in options.projects:
        with tempfile.TemporaryDirectory() as scratch:
            root = find_project(package.resolve() / "any.py")
            copy = shutil.copytree(root, Path(scratch, root.name), symlinks=True)
            for block in drawn:
                name = block.rpartition(".")[2].lower()
                into = copy / package.resolve().relative_to(root) / "layers_drawn" / f"{name}.py"
                results.append(attempt(options.library, block, root.name, into))
                print(json.dumps(results[-1]), flush=True)
    counts = Counter(result["outcome"] for result in results)
    print(f"{len(results)} pairs of {len(drawn)} blocks and {len(options.projects)} projects: {dict(counts)}")
    if options.record is not None:
        write_text(options.record, json.dumps(make_record(drawn, options.seed, results), indent=1) + "\n")


if __name__ == "__main__":
    main()
