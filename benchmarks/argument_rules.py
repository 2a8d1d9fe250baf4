"""What the search for arguments wins by: each start and each edit, counted over the blocks that run.

    python -m benchmarks.argument_rules NAMES.json [CORPUS] [EVERY]

Every EVERY-th of the classes that NAMES.json lists, of a corpus, with the hints of their sources' texts alone: nothing
is recorded. A start or an edit that wins fewer than five of all may go.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from extract.arguments.hints import HintFinder
from extract.emit.emit import Emitted, Emitter
from extract.extractor import read_names
from extract.model.results import at_least
from extract.proofs.runtime import runtime_for
from extract.resolve.discover import Selection, discover, select
from extract.resolve.distributions import list_distributions
from extract.resolve.index import FactsIndex
from extract.resolve.modules import FOUNDATION, CorpusIndex
from extract.sources import open_available
from lemur_core.sandbox import PRELOAD, Job, Limits, Sandbox, Status
from manifests.records.corpus import load_corpus

_ENTRY = "benchmarks.argument_rules_entry:search"
_LIMITS = Limits(wall_seconds=90, cpu_seconds=30, memory_bytes=4 * 2**30)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", type=Path, help="JSON list of class names")
    parser.add_argument("corpus", nargs="?", default="paper")
    parser.add_argument("every", nargs="?", type=int, default=1, help="only every so many classes")
    chosen = parser.parse_args()
    sources = open_available(load_corpus(chosen.corpus))[0]
    with tempfile.TemporaryDirectory() as folder, FactsIndex(Path(folder) / "index.sqlite") as index:
        scope = [(source, file) for source in sources for file in source.files if source.in_scope(file.path)]
        index.add(scope)
        library = CorpusIndex(sources, index.facts)
        emitter = Emitter(library, index)
        classes = discover(library, [library.by_path[source.name, file.path] for source, file in scope])
        found = select(classes, Selection(names=tuple(read_names(chosen.names)))).classes[:: chosen.every]
        files = ((target, emitter.emit(target)) for target in found)
        emitted = [(target, file) for target, file in files if isinstance(file, Emitted) and not file.fault]
        own = {source.name.partition("@")[0] for source in sources}
        own |= {name for s in sources for package in library.list_packages(s) for name in list_distributions(package)}
        runtime = runtime_for(sorted({need for _, file in emitted for need in file.requires}), known=sorted(own))
        finder, jobs = HintFinder(library, index, emitter), []
        for target, file in emitted:
            payload: dict[str, object] = {"code": file.code, "name": target.name, "goal": "backward"}
            payload |= {"folders": list(map(str, runtime.folders)), "hints": finder.hints_for(target)}
            packages = library.list_packages(target.module.source)
            payload["origin"] = [name for name in packages if name != FOUNDATION]
            jobs.append(Job(target.block, _ENTRY, payload, _LIMITS))
        with Sandbox(readable=runtime.folders, preload=PRELOAD, entries=[_ENTRY]) as box:
            answers = [outcome.value for outcome in box.run(jobs) if outcome.status is Status.OK]
    ran = [answer for answer in answers if isinstance(answer, dict) and at_least(answer["level"], "forward")]
    seconds = sum(answer["seconds"] for answer in answers if isinstance(answer, dict))
    print(f"{len(ran)} of {len(jobs)} blocks run forward; {seconds:.0f} CPU seconds")
    for label, ways in (
        ("start", [answer["way"][:1] for answer in ran]),
        ("edit", [answer["way"][1:] for answer in ran]),
    ):
        for name, count in Counter(name for way in ways for name in dict.fromkeys(way)).most_common():
            print(f"{label:5}  {count:5}  {name}")


if __name__ == "__main__":
    main()
