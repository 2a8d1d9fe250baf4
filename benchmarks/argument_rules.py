"""Which rules for finding arguments win blocks: each is switched off, and the blocks that need it are counted.

    python -m benchmarks.argument_rules NAMES.json [EVERY]

Two sets of blocks, every EVERY-th class of each: the classes that NAMES.json lists, of corpus `paper`, and the packages
in `UNSEEN`, which no rule was written for. A rule that none of the won blocks used wins none. Of each other rule, the
blocks that used it are run again without it until `ENOUGH` are lost. What wins fewer in both sets together may go.
"""

import argparse
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from extract.arguments import repairs, resizing
from extract.arguments.hints import HintFinder, companions, finder, interpreter, usage
from extract.arguments.values import inputs
from extract.arguments.values import names as values
from extract.emit.emit import Emitted, Emitter
from extract.extractor import read_names
from extract.model.results import at_least
from extract.proofs.runtime import runtime_for
from extract.resolve.discover import Selection, discover, select
from extract.resolve.distributions import list_distributions
from extract.resolve.index import FactsIndex
from extract.resolve.modules import FOUNDATION, CorpusIndex
from extract.sources import PackageSource, SourceFile, open_available, open_source
from lemur_core.sandbox import PRELOAD, Job, Limits, Sandbox, Status
from lemur_core.source.values import UNKNOWN
from manifests.records.corpus import load_corpus

UNSEEN = (
    "kornia@0.9.0",
    "segmentation-models-pytorch@0.6.0",
    "vit-pytorch@1.26.11",
    "speechbrain@1.1.2",
    "pytorch-forecasting@1.8.0",
    "monai@1.6.1",
)
ENOUGH = 3  # blocks that a rule has to win
_MOST = 48  # blocks that are run again for one rule
_ENTRY = "benchmarks.argument_rules_entry:climb_without"
_LIMITS = Limits(wall_seconds=90, cpu_seconds=30, memory_bytes=4 * 2**30)

#: Rules inside the sandbox: patterns of the tables, and repairs by name.
PATTERNS: tuple[str, ...] = (
    *(rule.pattern for rule in (*values.NAMES, *values.ANNOTATIONS)),
    *(pattern for pattern, *_ in values.SMALL),
    *(pattern for pattern, _ in inputs.MEANINGS),
    *(pattern for pattern, *_ in resizing.SIZES),
    *(pattern for pattern, _ in (*resizing.RANKS, *repairs.KINDS)),
    *(rule.__name__ for rule in repairs.RULES),
)
#: Rules about the corpus: what is put in the place of which function.
HINTS: dict[str, tuple[Any, str, Any]] = {
    "documented shapes": (usage, "list_documented_shapes", lambda *_: ()),
    "calls": (finder.HintFinder, "_rate_sites", lambda *_: iter(())),
    "classes that parameters want": (companions.Companions, "list_for", lambda *_: iter(())),
    "classes that arguments name": (companions.Companions, "list_named", lambda *_: iter(())),
    "functions of the file": (interpreter, "_DEEPEST", 1),
    "comprehensions": (interpreter.ValueInterpreter, "comprehension", lambda *_: UNKNOWN),
    "methods of containers": (interpreter.ValueInterpreter, "_call_container_method", lambda *_: UNKNOWN),
}


class BlockSet:
    """The blocks of one set, with what they come to."""

    def __init__(self, sources: Sequence[PackageSource], index: FactsIndex, names: Sequence[str], every: int) -> None:
        scope = [(source, file) for source in sources for file in source.files if source.in_scope(file.path)]
        index.add(scope)
        self._index = index
        self._library = CorpusIndex(sources, index.facts)
        self._emitter = Emitter(self._library, index)
        classes = discover(self._library, [self._library.by_path[source.name, file.path] for source, file in scope])
        found = select(classes, Selection(names=tuple(names))).classes[::every]
        emitted = [item for item in map(self._emitter.emit, found) if isinstance(item, Emitted) and not item.fault]
        own = {source.name.partition("@")[0] for source in sources}
        own |= {
            name for s in sources for package in self._library.list_packages(s) for name in list_distributions(package)
        }
        runtime = runtime_for(sorted({need for item in emitted for need in item.requires}), known=sorted(own))
        self.folders = [runtime.folder] if runtime.folder is not None else []
        self._emitted = {item.target.block: item for item in emitted}
        self.used: dict[str, Sequence[str]] = {}
        self.first = self.hints(self._emitted)

    def hints(self, blocks: Iterable[str]) -> dict[str, Mapping[str, object]]:
        """The hints of some blocks, read anew, never from the index."""
        with mock.patch.object(usage, "read_usage", _read):
            finder = HintFinder(self._library, self._index, self._emitter)
            return {block: finder.hints_for(self._emitted[block].target).to_json() for block in blocks}

    def _job(self, block: str, hints: Mapping[str, object], off: Sequence[str]) -> Job:
        item = self._emitted[block]
        payload: dict[str, object] = {"code": item.code, "name": item.target.name, "goal": "backward"}
        payload |= {"folders": [str(folder) for folder in self.folders], "hints": hints, "off": list(off)}
        packages = self._library.list_packages(item.target.module.source)
        return Job(block, _ENTRY, payload | {"origin": [name for name in packages if name != FOUNDATION]}, _LIMITS)

    def climb(
        self, box: Sandbox, blocks: Iterable[str], off: Sequence[str] = (), hints: Mapping[str, Any] | None = None
    ) -> Iterator[str]:
        """The blocks that do not run forward, without some rules or with other hints; fills `used` without either."""
        jobs = (self._job(block, (hints or self.first)[block], off) for block in blocks)
        for outcome in box.run(jobs):
            value = outcome.value if outcome.status is Status.OK else None
            if isinstance(value, dict) and at_least(value["level"], "forward"):
                if not off and hints is None:
                    self.used[outcome.key] = value["used"]
            else:
                yield outcome.key

    def lost(
        self, box: Sandbox, blocks: Sequence[str], off: Sequence[str] = (), hints: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Blocks that are lost, up to ENOUGH; a random sample where there are many."""
        chosen = random.Random(0).sample(sorted(blocks), min(len(blocks), _MOST))
        lost: list[str] = []
        for start in range(0, len(chosen), 8):
            lost += self.climb(box, chosen[start : start + 8], off, hints)
            if len(lost) >= ENOUGH:
                break
        return lost


def _read(index: FactsIndex, source: PackageSource, file: SourceFile) -> usage.FileUsage:  # noqa: ARG001
    return usage.read_file(source.read(file))


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", type=Path, help="JSON list of class names")
    arguments.add_argument("every", nargs="?", type=int, default=1, help="only every so many classes")
    chosen = arguments.parse_args()
    names, every = read_names(chosen.names), chosen.every
    with tempfile.TemporaryDirectory() as folder, FactsIndex(Path(folder) / "index.sqlite") as index:
        targets = BlockSet(open_available(load_corpus("paper"))[0], index, names, every)
        sets = [targets, BlockSet([open_source(package) for package in UNSEEN], index, (), every)]
        folders = [folder for blocks in sets for folder in blocks.folders]
        with Sandbox(readable=folders, preload=PRELOAD, entries=[_ENTRY]) as box:
            _measure(sets, box)


def _measure(sets: Sequence[BlockSet], box: Sandbox) -> None:
    for blocks in sets:
        failed = list(blocks.climb(box, blocks.first))
        print(f"{len(blocks.first)} blocks: {len(blocks.used)} run forward, {len(failed)} do not", flush=True)
    for rule in PATTERNS:
        users = [[block for block, used in blocks.used.items() if rule in used] for blocks in sets]
        _report(rule, users, [blocks.lost(box, some, [rule]) for blocks, some in zip(sets, users, strict=True)])
    for rule, (holder, name, other) in HINTS.items():
        with mock.patch.object(holder, name, other):
            changed = [blocks.hints(blocks.used) for blocks in sets]
        pairs = list(zip(sets, changed, strict=True))
        users = [[block for block in hints if hints[block] != blocks.first[block]] for blocks, hints in pairs]
        lost = [blocks.lost(box, some, (), hints) for (blocks, hints), some in zip(pairs, users, strict=True)]
        _report(rule, users, lost)


def _report(rule: str, users: Sequence[Sequence[str]], lost: Sequence[Sequence[str]]) -> None:
    wins = sum(map(len, lost))
    counts = ", ".join(f"{len(gone)} of {len(some)}" for gone, some in zip(lost, users, strict=True))
    print(f"{'keep' if wins >= ENOUGH else 'drop'}  lost {counts}  {rule[:90]}", flush=True)


if __name__ == "__main__":
    main()
