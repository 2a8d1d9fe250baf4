"""How far blocks come, and what that costs: with what the corpus tells of arguments, without it, and without a search.

    python -m benchmarks.validation [CORPUS] [BLOCKS]

The same blocks, evenly spread over the corpus, are taken to `executed`, then to `backward` with and without hints. The
last line is what a user gets by hand: `Class()` called with one image.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from extract.arguments.hints import HintFinder
from extract.emit.emit import Emitted, Emitter
from extract.model.results import count_reached
from extract.proofs.runtime import runtime_for
from extract.proofs.validate import Candidate, validate_all
from extract.resolve.discover import discover
from extract.resolve.distributions import list_distributions
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex
from extract.sources import open_available
from lemur_core.sandbox import Job, Sandbox, Status
from manifests.records import LEVELS, Level
from manifests.records.corpus import load_corpus

BY_HAND = "benchmarks.by_hand:call_with_an_image"


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("corpus", nargs="?", default="paper")
    arguments.add_argument("blocks", nargs="?", type=int, default=200)
    chosen = arguments.parse_args()
    sources, _ = open_available(load_corpus(chosen.corpus))
    scope = [(source, file) for source in sources for file in source.files if source.in_scope(file.path)]
    with tempfile.TemporaryDirectory() as folder, FactsIndex(Path(folder) / "index.sqlite") as index:
        index.add(scope)
        library = CorpusIndex(sources, index.facts)
        found = discover(library, [library.by_path[source.name, file.path] for source, file in scope])
        sample = [found[place * len(found) // chosen.blocks] for place in range(min(chosen.blocks, len(found)))]
        emitter = Emitter(library, index)
        emitted = [item for item in map(emitter.emit, sample) if isinstance(item, Emitted) and not item.fault]
        own = {s.name.partition("@")[0] for s in sources}
        own |= {name for s in sources for package in library.list_packages(s) for name in list_distributions(package)}
        runtime = runtime_for(sorted({r for item in emitted for r in item.requires}), known=sorted(own))
        folders = [runtime.folder] if runtime.folder is not None else []
        started = time.perf_counter()
        finder = HintFinder(library, index, emitter)
        hinted = [
            Candidate(
                item.target.block,
                item.target.name,
                item.code,
                library.list_packages(item.target.module.source),
                finder.hints_for(item.target).to_json(),
            )
            for item in emitted
        ]
        print(f"{len(sample)} classes, {len(emitted)} emitted; hints {_each(started, len(hinted))}")
        bare = [replace(candidate, hints=None) for candidate in hinted]
        _measure("executed", bare, index, folders, "executed")
        _measure("backward, with hints", hinted, index, folders, "backward")
        _measure("backward, names alone", bare, index, folders, "backward")
        _by_hand(bare, folders)


def _measure(
    label: str, candidates: Sequence[Candidate], index: FactsIndex, folders: Sequence[Path], goal: Level
) -> None:
    started = time.perf_counter()
    verdicts = [verdict for _, verdict in validate_all(candidates, index, goal, jobs=2, runtime=folders)]
    here = count_reached(Counter(verdict.level for verdict in verdicts))
    rungs = ", ".join(f"{here[rung]} {rung}" for rung in LEVELS[LEVELS.index("executed") :] if here[rung])
    print(f"{label:<24}{_each(started, len(candidates))}: {rungs}")


def _by_hand(candidates: Sequence[Candidate], folders: Sequence[Path]) -> None:
    started = time.perf_counter()
    with Sandbox(entries=[BY_HAND], readable=folders) as box:
        jobs = (
            Job(item.key, BY_HAND, {"code": item.code, "name": item.name, "folders": [str(f) for f in folders]})
            for item in candidates
        )
        runs = sum(outcome.status is Status.OK and outcome.value is True for outcome in box.run(jobs))
    print(f"{'Class()(image)':<24}{_each(started, len(candidates))}: {runs} forward")


def _each(started: float, count: int) -> str:
    seconds = time.perf_counter() - started
    return f"{seconds:7.1f} s, {1000 * seconds / max(count, 1):5.0f} ms a block"


if __name__ == "__main__":
    main()
