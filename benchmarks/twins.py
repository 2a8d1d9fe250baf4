"""Functional twins among the kept networks: `python -m benchmarks.twins SNAPSHOT [--removals]`.

Every kept record is a candidate whose parameters in use have the same sizes as another one's. Each is built and run
with parameters of our choice (`benchmarks.twins_entry`), in the order of first use, and in that of registration: eval
and train mode, three seeds, inputs of both signs and three scales; outputs, gradients of inputs and parameters, and
buffers, for small images, and in eval mode for those of the trace. Two records are twins if all numbers of one order
agree to a share of 10^-6. The graphs have no part in it, but for who is asked: a record without a graph does not run.
"""

import argparse
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, prod
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
from scipy.cluster.hierarchy import DisjointSet

from curate.compute.graphs import build_payload
from curate.compute.runs import NetFailure, open_box, read_answer, read_parameters
from lemur_core.sandbox import Limits
from lemur_core.sandbox.stage import SandboxStage
from manifests.folders.kinds import SNAPSHOT

_SIZES = (32, 64, 128)  # of images, tried before the size of the trace: the same computation for less
_BATCH = 4
_SHARE = 1e-6  # of a tensor's norm by which two measurements of one computation may differ
_NOISE = 1e-9  # of the largest norm of a run


@dataclass(frozen=True, slots=True)
class Request:
    """A network to measure, as `twins_entry.judge` takes it."""

    code: str
    prm: Mapping[str, Any]
    cases: Sequence[Mapping[str, Any]]
    version: int = 4  # of the entry, whose text is no part of what outcomes are remembered by


@dataclass(frozen=True, slots=True)
class NetNumbers:
    """What a network computes, by the order of its parameters; `sizes`: of those in use, sorted."""

    runs: Literal[True]
    in_shape: list[int]
    sizes: list[int]
    numbers: dict[str, list[list[float]]]
    seconds: float  # of CPU

    def equals(self, other: "NetNumbers") -> bool:
        """Return whether all numbers of one order agree."""
        return self.in_shape == other.in_shape and any(
            _agree(rows, other.numbers[order]) for order, rows in self.numbers.items()
        )


JUDGE = SandboxStage[NetNumbers | NetFailure](
    "benchmarks.twins_entry:judge",
    NetNumbers | NetFailure,
    Limits(wall_seconds=900, cpu_seconds=120, memory_bytes=8 * 2**30),
    retries=False,
    label="numbers",
    unit="networks",
)


def _agree(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    if len(one) != len(other):
        return False
    noise = _NOISE * max((row[0] for row in one if not isnan(row[0])), default=0.0)
    return all(
        (isnan(a) and isnan(b)) or a == b or abs(a - b) <= _SHARE * max(first[0], second[0]) + noise
        for first, second in zip(one, other, strict=True)
        for a, b in zip(first, second, strict=True)
    )


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the kept records that have a graph by id, each with the shape of its input and its graph's parameters."""
    columns = ["id", "nn", "nn_code", "task", "dataset", "prm", "split"]
    tables = [pq.read_table(path, columns=columns) for path in SNAPSHOT.files(folder, "records")]
    records = {row["id"]: row for table in tables for row in table.to_pylist()}
    traced: dict[str, dict[str, Any]] = {}
    for row in pq.read_table(folder / "graphs.parquet", columns=["id", "eval", "in_shape"]).to_pylist():
        if row["id"] in records and row["eval"]:
            nodes = json.loads(row["eval"])["nodes"]
            sizes = sorted(prod(outputs[0][1]) for op, _, outputs, _ in nodes if op == "parameter")
            traced[row["id"]] = records[row["id"]] | {"in_shape": row["in_shape"], "sizes": tuple(sizes)}
    return traced


def build_request(record: Mapping[str, Any]) -> Request:
    """Return the request of a record: its network at small sizes first, then at that of its trace."""
    payload = build_payload(record["task"], record["dataset"], read_parameters(record["prm"]))
    assert not isinstance(payload, str)
    traced = tuple(record["in_shape"])  # of a batch of its own
    case = next({**case, "in_shape": traced} for case in payload["cases"] if tuple(case["in_shape"])[1:] == traced[1:])
    smaller: list[dict[str, Any]] = []
    if len(traced) == 4:
        _, channels, height, _ = traced
        smaller = [{**case, "in_shape": (_BATCH, channels, size, size)} for size in _SIZES if size < height]
    return Request(record["nn_code"], payload["prm"], [*smaller, case])


def measure(requests: Mapping[str, Request]) -> Iterator[tuple[str, NetNumbers | NetFailure]]:
    """Yield the numbers of networks by key. Raises: UserError if no sandbox is available."""
    with open_box([JUDGE], jobs=None, unsafe=False) as box:
        for reply in JUDGE.run(box, requests):
            yield reply.key, read_answer(reply)


def find_twins(candidates: Sequence[Sequence[str]], numbers: Mapping[str, NetNumbers]) -> list[list[str]]:
    """Return the groups of twins among groups of candidates: all pairs are compared."""
    twins = DisjointSet(numbers)
    for members in candidates:
        for one, other in itertools.combinations(members, 2):
            if one in numbers and other in numbers and numbers[one].equals(numbers[other]):
                twins.merge(one, other)
    return [sorted(group) for group in twins.subsets() if len(group) > 1]


def read_removals(folder: Path, records: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what was removed for the numbers of a kept record, by id: its code, and the rest of that record."""
    graphs = {
        row["id"]: row["graph"] for row in pq.read_table(folder / "graphs.parquet", columns=["id", "graph"]).to_pylist()
    }
    codes = {
        row["id"]: row["nn_code"]
        for row in pq.read_table(folder / "networks.parquet", columns=["id", "nn_code"]).to_pylist()
    }
    return {
        row["id"]: {
            **records[row["canonical"]],
            "nn": row["nn"],
            "nn_code": codes[row["id"]],
            "canonical": row["canonical"],
        }
        for row in pq.read_table(folder / "decisions.parquet").to_pylist()
        if row["stage"] == "graph" and row["canonical"] in records and graphs[row["id"]] != graphs[row["canonical"]]
    }


def judge_removals(folder: Path, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Print which removals by numbers the judge does not confirm."""
    removals = read_removals(folder, records)
    asked = removals | {row["canonical"]: records[row["canonical"]] for row in removals.values()}
    answers = dict(measure({id_: build_request(record) for id_, record in asked.items()}))
    numbers = {id_: answer for id_, answer in answers.items() if isinstance(answer, NetNumbers)}
    both = {id_: row["canonical"] for id_, row in removals.items() if {id_, row["canonical"]} <= numbers.keys()}
    wrong = [id_ for id_, canonical in both.items() if not numbers[id_].equals(numbers[canonical])]
    print(f"{len(removals)} removals by numbers; measured: {len(both)}; not confirmed: {len(wrong)}")
    for id_ in wrong:
        print(f"  {removals[id_]['nn']}, removed for {records[both[id_]]['nn']}")


def main() -> None:
    """Print how many of the kept records are functional twins, and which."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--removals", action="store_true", help="judge what was removed by numbers instead")
    given = parser.parse_args()
    records = read_records(given.snapshot)
    if given.removals:
        judge_removals(given.snapshot, records)
        return
    groups: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for id_, record in records.items():
        groups[record["sizes"]].append(id_)
    candidates = [members for members in groups.values() if len(members) > 1]
    answers = dict(measure({id_: build_request(records[id_]) for members in candidates for id_ in members}))
    numbers = {id_: answer for id_, answer in answers.items() if isinstance(answer, NetNumbers)}
    failed = Counter(answer.category for answer in answers.values() if not isinstance(answer, NetNumbers))
    pairs = sum(len(members) * (len(members) - 1) // 2 for members in candidates)
    print(
        f"{len(records):,} kept records with a graph; {len(answers):,} of them have parameters of the sizes of another"
        f" one's: {pairs:,} pairs"
    )
    print(
        f"measured in {sum(one.seconds for one in numbers.values()):.0f} CPU s; not measured: {dict(failed) or 'none'}"
    )
    twins = find_twins(candidates, numbers)
    apart = Counter(
        records[id_]["split"]
        for members in twins
        if len({records[id_]["split"] for id_ in members}) > 1
        for id_ in members
        if records[id_]["split"] != "train"
    )
    print(f"twins: {sum(len(members) - 1 for members in twins)} records more than computations, in {len(twins)} groups")
    print(
        f"with a twin in another split: {', '.join(f'{n} of {split}' for split, n in sorted(apart.items())) or 'none'}"
    )
    for members in sorted(twins, key=len, reverse=True):
        print("  " + ", ".join(f"{records[id_]['nn']} ({records[id_]['split']})" for id_ in members))


if __name__ == "__main__":
    main()
