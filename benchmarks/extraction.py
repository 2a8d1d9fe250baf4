"""Speed of extraction by stage, and of parsing against LibCST, on a corpus whose sources are in the cache already.

    python -m benchmarks.extraction [CORPUS] [BLOCKS]

Index cold (an empty database), warm (all files known), discovery, resolve and emit a block, sandboxed execution a
block; then the facts of the same files by `ast` against a bare `libcst.parse_module` of them.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import libcst

from extract.emit.emit import Emitted, Emitter
from extract.proofs.validate import Candidate, validate_all
from extract.resolve.discover import discover
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex
from extract.sources import open_available
from lemur_core.source.parse import parse_file
from manifests.records.corpus import load_corpus

_PARSED = 60  # files for the comparison of parsers


def timed(label: str, work: Callable[[], object], per: int = 0, unit: str = "") -> float:
    """Run, print wall and CPU seconds of this process, and milliseconds for each of `per` units."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    each = f"  {1000 * wall / per:8.1f} ms a {unit}" if per else ""
    print(f"{label:<34}{wall:8.2f} s wall{cpu:8.2f} s CPU{each}")
    return wall


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("corpus", nargs="?", default="paper")
    arguments.add_argument("blocks", nargs="?", type=int, default=400, help="how many blocks to emit and execute")
    chosen = arguments.parse_args()
    sources, unopened = open_available(load_corpus(chosen.corpus))
    scope = [(source, file) for source in sources for file in source.files if source.in_scope(file.path)]
    print(f"{chosen.corpus}: {len(sources)} sources ({len(unopened)} not to be had), {len(scope)} files in scope")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.sqlite"
        with FactsIndex(path) as index:
            timed("index, cold", lambda: index.add(scope), len(scope), "file")
        with FactsIndex(path) as index:
            timed("index, warm", lambda: index.add(scope))
            library = CorpusIndex(sources, index.facts)
            modules = [library.by_path[source.name, file.path] for source, file in scope]
            found = discover(library, modules)
            print(f"{len(found):,} classes")
            sample = random.Random(0).sample(found, min(chosen.blocks, len(found)))
            emitter = Emitter(library, index)
            emitter.emit(sample[0])  # reads the registries of the whole library, once
            emitted: list[Emitted] = []

            def emit() -> None:
                outcomes = [emitter.emit(item) for item in sample]
                emitted.extend(item for item in outcomes if isinstance(item, Emitted))

            timed("resolve and emit", emit, len(sample), "block")
            candidates = [
                Candidate(i.target.block, i.target.name, i.code, library.list_packages(i.target.module.source))
                for i in emitted
            ]
            list(validate_all(candidates[:4], index, "executed", jobs=2))
            timed(
                "execute in the sandbox",
                lambda: list(validate_all(candidates[4:], index, "executed", jobs=2)),
                len(candidates) - 4,
                "block",
            )
    texts = [source.read(file) for source, file in random.Random(1).sample(scope, min(_PARSED, len(scope)))]
    ours = timed("facts by ast", lambda: [parse_file(text) for text in texts], len(texts), "file")
    theirs = timed(
        "libcst.parse_module alone", lambda: [libcst.parse_module(text) for text in texts], len(texts), "file"
    )
    print(f"LibCST takes {theirs / ours:.1f} times as long")


if __name__ == "__main__":
    main()
