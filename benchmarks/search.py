"""How well `lemur search` finds a block by what its author says of it.

    python -m benchmarks.search DIR...

DIR: extraction folders; their blocks are searched together. Queries are the docstrings of their classes, which are
taken out of the code before it is indexed: the first sentences, without links and markup, with at least three telling
words (`benchmarks/descriptions.py`). They are asked as they are, and without the words of the block's own name (as
written, whole or in part; at least five telling words must be left, since fewer describe nothing). Right answers are
the block, those that compute the same (G0), and those whose class has the same code but for docstring, comments and
layout.

Three groups of packages are told apart: `fitted`, whose docstrings the ranking was fitted to; `chosen`, by which the
numbers of rounds and weights were chosen; `held out`, which played no part. Intervals are 95 % by bootstrap over the
queries of a group, 1,000 draws.
"""

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.descriptions import description, docstring_in, telling, without_name
from extract.search import open_index
from lemur_core.files.atomic import sha256_file
from manifests.folders.manifest import Manifest, Output, Stopwatch, write_manifest
from manifests.provenance import SPECS

#: Packages of which nothing was read when the vectors were fitted: weights were chosen on the first, the rest held out.
CHOSEN = ("detectron2", "mmpretrain", "torch-geometric", "ultralytics", "yolov5", "yolov7", "yolov9")
HELD_OUT = ("kornia", "monai", "pytorch-forecasting", "segmentation-models-pytorch", "speechbrain", "vit-pytorch")

_LEAST, _LEAST_NAMELESS = 3, 5  # telling words
_DRAWS = 1000

Rank = Callable[[str], Sequence[int] | npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Query:
    """A description, and the blocks that answer it, by number."""

    group: str
    text: str
    nameless: str | None
    right: frozenset[int]
    block: str


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--misses", type=int, default=0, help="Also print this many that are not among the first ten.")
    given = parser.parse_args()
    with TemporaryDirectory() as made:
        os.environ["LEMUR_CURATOR_CACHE"] = f"{made}/cache"  # the index lacks the docstrings: not for the user's cache
        joined, specs, queries = together(given.folders, Path(made) / "joined")
        index = open_index(joined)
        index.rank("convolution")  # so that all is loaded
        spent: list[float] = []

        def hybrid(text: str) -> list[int]:
            start = time.perf_counter()
            found = index.rank(text)
            spent.append(time.perf_counter() - start)
            return found

        print(f"{len(specs):,} blocks, {len(queries):,} docstrings; R@1, R@10, MRR with 95 % intervals")
        for nameless in (False, True):
            print("without the words of the name" if nameless else "as written")
            ranks = ranks_of(queries, hybrid, nameless=nameless)
            for group in ("fitted", "chosen", "held out", "all"):
                own = [place for query, place in ranks if group in (query.group, "all")]
                if own:
                    print(f"  {group:<10}{len(own):>5}  {told(own)}")
            missed = [(query, place) for query, place in ranks if query.group == "fitted" and place > 10]
            for query, place in missed[:: max(1, len(missed) // max(1, given.misses))][: given.misses]:
                text = query.nameless if nameless else query.text
                print(f"    {place:>5} {query.block}: {text}")
        print(f"a query takes {1000 * np.median(spent):.0f} ms in the median, {1000 * np.max(spent):.0f} ms at most")


def together(folders: Sequence[Path], joined: Path) -> tuple[Path, list[dict[str, Any]], list[Query]]:
    """The specs of folders as one that can be searched, and the queries to it."""
    specs: list[dict[str, Any]] = []
    docstrings: list[str | None] = []
    same: dict[str, set[int]] = defaultdict(set)
    joined.mkdir()
    with (joined / SPECS).open("w", encoding="utf-8") as file:
        for folder in folders:
            for line in (folder / SPECS).read_text(encoding="utf-8").splitlines(keepends=True):
                file.write(line)
                spec = json.loads(line)
                docstring, code, rest = docstring_in(folder, spec)
                if spec["file"]:
                    (joined / spec["file"]).parent.mkdir(parents=True, exist_ok=True)
                    (joined / spec["file"]).write_text(rest, encoding="utf-8")
                for key in (code, spec.get("graph")):
                    if key is not None:
                        same[key].add(len(specs))
                specs.append(spec | {"code": code})
                docstrings.append(docstring)
    path = joined / SPECS
    output = Output(path=SPECS, sha256=sha256_file(path), bytes=path.stat().st_size, rows=len(specs))
    facts: dict[str, Any] = {name: {} for name in ("versions", "parameters", "counts", "details")}
    write_manifest(
        joined, Manifest(kind="extraction", inputs=[], outputs=[output], measured=Stopwatch().measure(), **facts)
    )
    queries = []
    for number, (spec, docstring) in enumerate(zip(specs, docstrings, strict=True)):
        text = description(docstring or "")
        if telling(text) >= _LEAST:
            nameless = without_name(text, spec["name"])
            right = {number}.union(*(same[key] for key in (spec["code"], spec.get("graph")) if key is not None))
            own = nameless if telling(nameless) >= _LEAST_NAMELESS else None
            queries.append(Query(_group(spec["source"]), text, own, frozenset(right), spec["block"]))
    return joined, specs, queries


def _group(source: str) -> str:
    name = source.partition("@")[0]
    return "held out" if name in HELD_OUT else "chosen" if name in CHOSEN else "fitted"


def ranks_of(queries: Sequence[Query], ranking: Rank, *, nameless: bool) -> list[tuple[Query, int]]:
    """Of each query that can be asked so the rank of the first right answer; a very large one where there is none."""
    found = []
    for query in queries:
        text = query.nameless if nameless else query.text
        if text is not None:
            places = (place for place, number in enumerate(ranking(text), start=1) if int(number) in query.right)
            found.append((query, next(places, 1_000_000)))
    return found


def told(ranks: Sequence[int]) -> str:
    """Recall at 1 and 10, and the mean reciprocal rank, each with its interval."""
    every = np.array(ranks)
    drawn = np.random.default_rng(0).integers(0, len(every), (_DRAWS, len(every)))
    parts = []
    for values in (every == 1, every <= 10, 1 / every):
        low, high = np.quantile(values[drawn].mean(axis=1), (0.025, 0.975))
        parts.append(f"{values.mean():.3f} [{low:.3f}, {high:.3f}]")
    return "  ".join(parts)


if __name__ == "__main__":
    main()
