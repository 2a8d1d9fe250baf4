"""LEMUR in ten steps, each `lemur curate --previous` the step before, beside one run of all:
`python -m benchmarks.steps WORK [GRAPH]`.

A tenth of the codes, drawn by their digests, comes with all of its rows in each step. GRAPH as for `--graph`: `off` by
default. Prints a row of each step and of the one run, and writes `docs/records/steps-GRAPH.json`.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping
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

STEPS = 10
RECORDS = Path(__file__).parents[1] / "docs" / "records"
_COLUMNS = ["nn", "nn_code", "task", "dataset", "metric", "epoch", "accuracy", "duration", "prm"]


def write_steps(work: Path) -> list[Path]:
    """Write the rows of each step, which include those of all steps before."""
    paths = [work / f"step-{step:02}.parquet" for step in range(1, STEPS + 1)]
    writers: list[pq.ParquetWriter] = []
    for batch in open_source("lemur@2.1.0").batches():
        rows = pa.Table.from_batches([batch]).select(_COLUMNS)
        writers = writers or [pq.ParquetWriter(path, rows.schema) for path in paths]
        digests = (hashlib.sha256((code or "").encode()) for code in rows["nn_code"].to_pylist())
        first = pa.array([int(digest.hexdigest(), 16) % STEPS for digest in digests])
        for step, writer in enumerate(writers):
            writer.write_table(rows.filter(pc.less_equal(first, step)))
    for writer in writers:
        writer.close()
    return paths


def describe(snapshot: Snapshot, before: Mapping[str, str]) -> tuple[Json, dict[str, str]]:
    """Return the facts of a snapshot, and the split of each kept record by id. Args: before: those of the last step."""
    counts, details = snapshot.manifest.counts, snapshot.manifest.details
    splits = dict(zip(snapshot.records.id, snapshot.records.split, strict=True))
    facts: Json = {name: counts["stages"].get(name, 0) for name in ("exact", "lexical", "structural", "graph", "leak")}
    facts = {"codes": counts["codes"], "kept": len(splits), **facts, **counts["splits"]}
    facts["inherited"] = len(details.get("inherited", ()))
    facts["kept before, and gone or in another split"] = sum(splits.get(id_) != of for id_, of in before.items())
    return facts, splits


def main(work: Path, graph: Any = "off") -> None:
    """Make what is missing in WORK, print the table and write the record."""
    work.mkdir(parents=True, exist_ok=True)
    sources = [work / f"step-{step:02}.parquet" for step in range(1, STEPS + 1)]
    sources = sources if sources[-1].exists() else write_steps(work)
    record: Json = {"command": f"python -m benchmarks.steps WORK {graph}", "versions": package_versions(), "runs": {}}
    previous, before = None, dict[str, str]()
    for name, source in [(path.stem, path) for path in sources] + [("one run", sources[-1])]:
        out = work / f"{graph}-{name.replace(' ', '-')}"
        grows = name != "one run"
        if not out.exists():
            options = CurateOptions(graph=graph, license="MIT")
            curate(source, out=out, options=options, previous=previous if grows else None)
        facts, splits = describe(Snapshot(out), before if grows else {})
        record["runs"][name] = facts
        if grows:
            previous, before = out, splits
    both = before.keys() & splits.keys()
    record["kept by both"] = len(both)
    moves = Counter(f"{splits[id_]} in one run, {before[id_]} in steps" for id_ in both)
    record["their splits"] = dict(sorted(moves.items()))
    (RECORDS / f"steps-{graph}.json").write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(table(["", *facts], [[name, *map(str, of.values())] for name, of in record["runs"].items()])))
    print(f"kept by both: {len(both):,}; {record['their splits']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
