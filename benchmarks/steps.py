"""LEMUR in ten steps, each `lemur curate --previous` the step before, beside one run of all:
`python -m benchmarks.steps WORK [GRAPH]`.

A tenth of the codes, drawn by their digests, comes with all of its rows in each step. GRAPH as for `--graph`: `off` by
default. Prints a row of each step and of the one run, and writes `docs/records/steps-GRAPH.json`. What is in WORK is
not made again.
"""

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate import CurateOptions, Snapshot, curate
from curate.sources import open_source
from lemur_core.files import Json
from lemur_core.files.markdown import table
from manifests.folders.manifest import package_versions

RECORDS = Path(__file__).parents[1] / "docs" / "records"
_COLUMNS = ["nn", "nn_code", "task", "dataset", "metric", "epoch", "accuracy", "duration", "prm"]
_STAGES = ("exact", "lexical", "structural", "graph", "leak")


def write_steps(paths: list[Path]) -> None:
    """Write the rows of each step, which include those of all steps before."""
    writers: list[pq.ParquetWriter] = []
    for batch in open_source("lemur@2.1.0").batches():
        rows = pa.Table.from_batches([batch]).select(_COLUMNS)
        writers = writers or [pq.ParquetWriter(path, rows.schema) for path in paths]
        digests = (hashlib.sha256((code or "").encode()) for code in rows["nn_code"].to_pylist())
        first = pa.array([int(digest.hexdigest(), 16) % len(paths) for digest in digests])
        for step, writer in enumerate(writers):
            writer.write_table(rows.filter(pc.less_equal(first, step)))
    for writer in writers:
        writer.close()


def main(work: Path, graph: Any = "off") -> None:
    """Make what is missing in WORK, print the table and write the record."""
    work.mkdir(parents=True, exist_ok=True)
    sources = {f"step-{step:02}": work / f"step-{step:02}.parquet" for step in range(1, 11)}
    if not sources["step-10"].exists():
        write_steps(list(sources.values()))
    options, runs = CurateOptions(graph=graph, license="MIT"), dict[str, Json]()
    previous, splits = None, dict[str, str]()
    for name, source in {**sources, "one run": sources["step-10"]}.items():
        out, before = work / f"{graph}-{name.replace(' ', '-')}", splits
        previous = None if name == "one run" else previous
        snapshot = Snapshot(out) if out.exists() else curate(source, out=out, options=options, previous=previous)
        counts, details = snapshot.manifest.counts, snapshot.manifest.details
        splits = dict(zip(snapshot.records.id, snapshot.records.split, strict=True))
        stages = {stage: counts["stages"].get(stage, 0) for stage in _STAGES}
        runs[name] = {"codes": counts["codes"], "kept": len(splits), **stages, **counts["splits"]}
        if name != "one run":
            previous = out
            lost = sum(splits.get(id_) != split for id_, split in before.items())
            runs[name] |= {"inherited": len(details.get("inherited", ())), "lost or in another split": lost}
    both = before.keys() & splits.keys()
    moves = Counter(f"{splits[id_]} in one run, {before[id_]} in steps" for id_ in both)
    facts: Json = {"command": f"python -m benchmarks.steps WORK {graph}", "versions": package_versions(), "runs": runs}
    facts |= {"kept by both": len(both), "their splits": dict(sorted(moves.items()))}
    (RECORDS / f"steps-{graph}.json").write_text(json.dumps(facts, indent=1) + "\n")
    names = list(runs["step-10"])
    print("\n".join(table(["", *names], [[name, *(str(of.get(at, "")) for at in names)] for name, of in runs.items()])))
    print(f"kept by both: {len(both):,}; {facts['their splits']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
