"""Networks of a corpus that compute the same: `python -m benchmarks.graphs [SOURCE]`.

Three selections of a source (the released LEMUR): that of nn-dup 2.2.4, by text alone (`--graph off`), and with graphs
(the default). Of what each keeps it prints how many were traced, how many computations they are, how many records
compute what another one does, and how many of validation and test have such a twin in train.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.versus_nndup import read_peer, run_peer
from curate.compute.graphs import NetworkTracer, build_payload
from curate.compute.runs import read_parameters
from curate.sources import open_source
from lemur_core.files import Json
from lemur_core.files.markdown import table as markdown_table

_WAYS = {
    "text alone": ["--graph", "off"],
    "with graphs": [],
}
_COLUMNS = ["nn_code", "task", "dataset", "prm", "split"]


def main(source: str) -> None:
    """Curate, trace, print the table."""
    lemur = str(Path(sys.executable).with_name("lemur"))
    with tempfile.TemporaryDirectory() as scratch, NetworkTracer() as tracer:
        rows = [["nn-dup", *map(str, _count(tracer, _select_by_peer(source, Path(scratch))))]]
        for name, options in _WAYS.items():
            out = Path(scratch, name.replace(" ", "-"))
            command = [lemur, "curate", source, "--out", str(out), *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            files = sorted(out.glob("data/records/*.parquet"))
            records = [row for path in files for row in pq.read_table(path, columns=_COLUMNS).to_pylist()]
            rows.append([name, *map(str, _count(tracer, records))])
    head = ["way", "kept", "traced", "computations", "twins", "validation: twin in train", "test: twin in train"]
    print("\n".join(markdown_table(head, rows)))


def _select_by_peer(source: str, scratch: Path) -> list[Json]:
    """Return the rows that nn-dup keeps, with its splits."""
    table = pa.Table.from_batches(list(open_source(source).batches())).drop_columns(["problem"])
    pq.write_table(table, scratch / "rows.parquet")
    run_peer(scratch / "rows.parquet", scratch / "peer")
    splits = {row: split.replace("dev", "validation") for row, split in read_peer(scratch / "peer").splits.items()}
    kept = table.take(list(splits)).select(["nn_code", "task", "dataset", "prm"]).to_pylist()
    return [row | {"split": split} for row, split in zip(kept, splits.values(), strict=True)]


def _count(tracer: NetworkTracer, records: list[Json]) -> list[int]:
    payloads = {}
    for number, record in enumerate(records):
        given = build_payload(record["task"], record["dataset"], read_parameters(record["prm"]))
        if isinstance(given, dict):
            payloads[number] = given | {"code": record["nn_code"]}
    traced = {number: found.graph for number, found in tracer.run(payloads) if found.graph is not None}
    times = Counter(traced.values())
    in_train = {graph for number, graph in traced.items() if records[number]["split"] == "train"}
    leaked = Counter(records[number]["split"] for number, graph in traced.items() if graph in in_train)
    twins = len(traced) - len(times)
    return [len(records), len(traced), len(times), twins, leaked["validation"], leaked["test"]]


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["lemur"]))
