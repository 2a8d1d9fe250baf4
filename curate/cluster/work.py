"""What the tasks of a curation exchange: Parquet files by hash range of ids, in a folder or at an address.

plan.json              what was asked
source.json, rows/     the rows of the source as they were read, and what the source says of itself
codes/PART             the distinct codes of a range of ids
features/PART          their features, as in the cache
order.parquet          the records, best first: their places are what all else speaks of
keys/PART/RANK         by range of keys: who may be near whom shares one
links/RANK/PART        the places that may be near those of a range of ids
rounds/PASS/ROUND/RANK what a round of a pass has decided
waits/PASS/ROUND/RANK  and the better open code that it found near each other open one
states/PASS            what a pass has decided
graphs/PASS/RANK       what networks compute that were traced after a pass; 0: before the first
verdicts/RANK          why each is kept or removed
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from curate.compute.graphs import Traced
from curate.model.features import FeatureStore, FeatureTable
from curate.model.options import CurateOptions
from curate.sources.rows import Source
from lemur_core.distributed.exchange import Exchange
from lemur_core.files.atomic import atomic_file
from lemur_core.similarity.features.minhash import Banding, IntArray
from manifests.folders.manifest import Input

OPEN, KEPT, REMOVED = 0, 1, 2

GRAPHS = pa.schema(
    [("place", pa.int64()), ("graph", pa.string()), ("graph_widths", pa.string()), ("answer", pa.large_string())]
)

States = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Work:
    """The folder of one run, which is divided into `parts` ranges of ids."""

    files: Exchange
    options: CurateOptions
    parts: int
    against: tuple[Path, ...] = ()  # of a delta: the folders that it appends to
    origins: tuple[Path, ...] = ()  # extractions that codes may be from

    def part_of(self, ids: list[bytes]) -> IntArray:
        """The range in which each id lies, which is the task whose own it is."""
        heads = np.array([int.from_bytes(id_[:4], "big") for id_ in ids], np.int64)
        return heads * self.parts >> 32

    def name(self, *names: str | int) -> str:
        """The name of a Parquet file; numbers are names of five digits."""
        return f"{_joined(names)}.parquet"

    def write(self, table: pa.Table, *names: str | int) -> None:
        """Write a table, whole or not at all."""
        with atomic_file(self.files.path(name := self.name(*names))) as part:
            pq.write_table(table, part, compression="zstd")
        self.files.put(name)

    def there(self, *names: str | int) -> Path:
        """A file that was written."""
        (path,) = self.files.get(self.name(*names))
        return path

    def all_there(self, *names: str | int) -> list[Path]:
        """All files of a folder in the order of their names."""
        return self.files.get(*self.files.names(_joined(names)))

    def read(self, *names: str | int) -> pa.Table:
        """One table."""
        return pq.read_table(self.there(*names))

    def read_all(self, *names: str | int) -> pa.Table:
        """All tables of a folder in the order of their names."""
        return pa.concat_tables(pq.read_table(path) for path in self.all_there(*names))

    @cached_property
    def ids(self) -> list[bytes]:
        """The ids of the records, by place."""
        ids: list[bytes] = self.read("order").column("id").to_pylist()
        return ids

    def own(self, rank: int) -> IntArray:
        """The places that a task decides, ascending."""
        return np.flatnonzero(self.part_of(self.ids) == rank)

    def features(self) -> FeatureStore:
        """The features of all codes; not kept, since the list of a million takes 300 MB."""
        return self._features(None)

    def _features(self, only: list[bytes] | None) -> FeatureStore:
        self.all_there("features")
        return FeatureStore(self.options.tokens, self.files.here / "features", only)

    def features_of(self, places: IntArray) -> FeatureTable:
        """Features of some places, whose codes are numbered by their order in `places`."""
        ids = [self.ids[place] for place in places.tolist()]
        return self._features(ids).table(ids)

    @property
    def banding(self) -> Banding:
        """The bands that find every pair which the exact join has found."""
        bands: dict[str, int] = json.loads(self.files.read_text("banding.json"))
        return Banding(**bands)

    def states(self, at: int, before: int) -> States:
        """What the rounds before this one have decided in a pass, by place."""
        states = np.full(len(self.ids), OPEN, np.uint8)
        for number in range(before):
            decided = self.read_all("rounds", at, number)
            states[decided["place"].to_numpy()] = decided["state"].to_numpy()
        return states

    def decided(self, at: int) -> States:
        """What a pass has decided, by place."""
        states: States = self.read("states", at)["state"].to_numpy()
        return states

    def last_pass(self, up_to: int) -> int:
        """The last one that has something to decide: graphs were traced after the one before."""
        while up_to > 1 and not self.graphs_after(up_to - 1, ["place"]).num_rows:
            up_to -= 1
        return up_to

    def graphs_after(self, at: int, columns: list[str]) -> pa.Table:
        """What was traced after a pass: `place`, `graph` and `graph_widths` (null where there is none), `answer`."""
        tables = [pq.read_table(path, columns=columns) for path in self.all_there("graphs", at)]
        return pa.concat_tables([GRAPHS.empty_table().select(columns), *tables])

    def known(self, at: int) -> dict[int, Traced]:
        """What the codes compute that were traced before a pass, by place; no more than equality is told."""
        columns = ["place", "graph", "graph_widths"]
        tables = (self.graphs_after(earlier, columns) for earlier in range(at))
        return {row.pop("place"): Traced(row) for table in tables for row in table.to_pylist()}

    def answers(self, passes: int) -> dict[str, Any]:
        """What the sandbox answered of each code that was traced, by id."""
        tables = (self.graphs_after(at, ["place", "answer"]) for at in range(passes + 1))
        rows = (row for table in tables for row in table.to_pylist())
        return {self.ids[row["place"]].hex(): json.loads(row["answer"]) for row in rows}


def _joined(names: tuple[str | int, ...]) -> str:
    return "/".join(f"{name:05d}" if isinstance(name, int) else name for name in names)


class StoredRows(Source):
    """The rows of a source as they were read when the run began, and what it said of itself."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._said: dict[str, Any] = json.loads(work.files.read_text("source.json"))
        super().__init__(self._said["name"], self._said["where"])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches as they were read."""
        with pq.ParquetFile(self._work.there("rows", 0)) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group).combine_chunks().to_batches()[0]

    def inputs(self) -> list[Input]:
        """What was read."""
        return [Input.model_validate(item) for item in self._said["inputs"]]

    def files(self) -> list[Path]:
        """Those of the files that can be seen from here."""
        return [path for name in self._said["files"] if (path := Path(name)).exists()]

    def license(self, stated: str | None) -> str:  # noqa: ARG002 (it was stated when the run began)
        """The expression of the rows."""
        text: str = self._said["license"]
        return text
