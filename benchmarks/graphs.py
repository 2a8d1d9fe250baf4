"""Networks of a corpus that compute the same: `python -m benchmarks.graphs [SOURCE]`.

Curates a source (the released LEMUR) three times: by profile nn-dup (the decisions of nn-dup 2.2.4), by text alone
(`--graph off`), and with graphs (the default). Of what each keeps it prints how many were traced, how many computations
they are, how many records compute what another one does, and how many of validation and test have such a twin in train.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from curate.compute.graphs import NetworkTracer, build_payload
from curate.compute.runs import read_parameters
from lemur_core.files.markdown import table

_WAYS = {
    "nn-dup": ["--profile", "nn-dup"],
    "text alone": ["--graph", "off"],
    "with graphs": [],
}
_COLUMNS = ["id", "nn_code", "task", "dataset", "prm", "split"]


def main(source: str) -> None:
    """Curate, trace, print the table."""
    rows = []
    lemur = str(Path(sys.executable).with_name("lemur"))
    with tempfile.TemporaryDirectory() as scratch, NetworkTracer() as tracer:
        for name, options in _WAYS.items():
            out = f"{scratch}/{name.replace(' ', '-')}"
            subprocess.run([lemur, "curate", source, "--out", out, *options], check=True, stdout=subprocess.DEVNULL)
            rows.append([name, *map(str, _count(tracer, out))])
    head = ["way", "kept", "traced", "computations", "twins", "validation: twin in train", "test: twin in train"]
    print("\n".join(table(head, rows)))


def _count(tracer: NetworkTracer, folder: str) -> list[int]:
    records = [
        row
        for path in sorted(Path(folder).glob("data/records/*.parquet"))
        for row in pq.read_table(path, columns=_COLUMNS).to_pylist()
    ]
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
