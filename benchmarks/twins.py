"""Functional twins among the kept networks: `python -m benchmarks.twins SNAPSHOT`.

Every kept record with a graph whose parameters have the same sizes as another one's is built and run with parameters of
our choice, by position (`benchmarks.twins_entry`): eval and train mode, two seeds, inputs of both signs; outputs,
gradients of inputs and parameters, and updated buffers. Records whose numbers agree to six digits compute the same by
this measure, whatever their graphs say. The graphs propose the candidates and the order of the parameters, and decide
nothing: wrong ones can only hide twins.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from benchmarks.twins_order import count_weights, list_state, order_parameters
from curate.compute.graphs import build_payload
from curate.compute.runs import NetFailure, open_box, read_answer, read_parameters
from lemur_core.graphs.graph import Graph
from lemur_core.sandbox import Limits
from lemur_core.sandbox.stage import Retries, SandboxStage
from manifests.folders.formats import SNAPSHOT

_SIZES = (32, 64, 128)  # of images, tried before the size of the trace: the same computation for less
_BATCH = 3
_SEEDS = (0, 1)


@dataclass(frozen=True, slots=True)
class Request:
    """A network to measure, as `twins_entry.measure_behavior` takes it."""

    code: str
    prm: Mapping[str, Any]
    cases: Sequence[Mapping[str, Any]]
    order: Sequence[str]
    state: Sequence[str]
    seeds: Sequence[int]
    version: int = 2  # of the entry, whose text is no part of what outcomes are remembered by


@dataclass(frozen=True, slots=True)
class NetBehavior:
    """What a network computes, as a digest of rounded numbers; `informative`: a gradient reaches a parameter."""

    runs: Literal[True]
    behavior: str
    precision: str
    in_shape: list[int]
    informative: bool
    seconds: float  # of CPU


MEASURE = SandboxStage[NetBehavior | NetFailure](
    "benchmarks.twins_entry:measure_behavior",
    NetBehavior | NetFailure,
    Limits(wall_seconds=900, cpu_seconds=120, memory_bytes=8 * 2**30),
    Retries.NONE,
    label="numbers",
    unit="networks",
)


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the kept records by id, each with its graphs by mode as `forms` if it has any."""
    columns = ["id", "nn", "nn_code", "task", "dataset", "prm", "split"]
    tables = [pq.read_table(path, columns=columns) for path in SNAPSHOT.files(folder, "records")]
    records = {row["id"]: row for table in tables for row in table.to_pylist()}
    for row in pq.read_table(folder / "graphs.parquet").to_pylist():
        if row["id"] in records and row["graph"]:
            forms = {mode: Graph.from_json(json.loads(row[mode])) for mode in ("eval", "train") if row[mode]}
            records[row["id"]] |= {"forms": forms, "in_shape": row["in_shape"], "graph": row["graph"]}
    return records


def find_candidates(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the ids of the records whose parameters have the sizes of another record's."""
    groups: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for id_, record in records.items():
        if "forms" in record:
            groups[tuple(count_weights(record["forms"]))].append(id_)
    return [id_ for members in groups.values() if len(members) > 1 for id_ in members]


def build_request(record: Mapping[str, Any]) -> Request:
    """Return the request of a record: its network at small sizes first, then at that of its trace."""
    payload = build_payload(record["task"], record["dataset"], read_parameters(record["prm"]))
    assert not isinstance(payload, str)
    traced = tuple(record["in_shape"])  # of a batch of its own
    case = next({**case, "in_shape": traced} for case in payload["cases"] if tuple(case["in_shape"])[1:] == traced[1:])
    cases = [case]
    if len(case["in_shape"]) == 4:
        _, channels, height, _ = case["in_shape"]
        smaller = [{**case, "in_shape": (_BATCH, channels, size, size)} for size in _SIZES if size < height]
        cases = [*smaller, case]
    forms = record["forms"]
    return Request(record["nn_code"], payload["prm"], cases, order_parameters(forms), list_state(forms), _SEEDS)


def measure(requests: Mapping[str, Request]) -> Iterator[tuple[str, NetBehavior | NetFailure]]:
    """Yield the behavior of networks by key. Raises: UserError if no sandbox is available."""
    with open_box([MEASURE.guest], jobs=None, unsafe=False, limits=MEASURE.limits) as box:
        for reply in MEASURE.run(box, requests):
            yield reply.key, read_answer(reply)


def main() -> None:
    """Print how many of the kept records are functional twins, and which."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", type=Path)
    folder = parser.parse_args().snapshot
    records = read_records(folder)
    candidates = find_candidates(records)
    answers = dict(measure({id_: build_request(records[id_]) for id_ in candidates}))
    seconds = sum(answer.seconds for answer in answers.values() if isinstance(answer, NetBehavior))
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for id_ in candidates:
        answer = answers[id_]
        if isinstance(answer, NetBehavior) and answer.informative:
            groups[answer.behavior].append(id_)
    twins = [members for members in groups.values() if len(members) > 1]
    outcomes = Counter(
        answer.precision if isinstance(answer, NetBehavior) else answer.category for answer in answers.values()
    )
    apart = Counter(
        records[id_]["split"]
        for members in twins
        if len({records[id_]["split"] for id_ in members}) > 1
        for id_ in members
        if records[id_]["split"] != "train"
    )
    print(f"{len(records):,} kept records, {len(candidates):,} with parameters of the same sizes as another one's")
    print(f"measured in {seconds:.0f} CPU s: {', '.join(f'{count} {name}' for name, count in outcomes.most_common())}")
    print(f"twins: {sum(len(members) - 1 for members in twins)} records more than computations, in {len(twins)} groups")
    print(
        f"with a twin in another split: {', '.join(f'{n} of {split}' for split, n in sorted(apart.items())) or 'none'}"
    )
    for members in sorted(twins, key=len, reverse=True):
        print("  " + ", ".join(f"{records[id_]['nn']} ({records[id_]['split']})" for id_ in members))


if __name__ == "__main__":
    main()
