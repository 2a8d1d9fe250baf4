"""The files that the tasks of a curation exchange: Parquet by hash range of ids, in a folder or at an address.

plan.json              the request
source.json, rows/     the rows of the source as read, and what the source states about itself
codes/PART             the distinct codes of a range of ids
features/PART          their features, as in the cache
order.parquet          the records, best first; a place is an index into this order
keys/PART/RANK         by range of keys: codes that may be near each other share one
links/RANK/PART        the places that may be near those of a range of ids
rounds/PASS/ROUND/RANK the decisions of a round of a pass
states/PASS            the decisions of a pass
graphs/PASS/RANK       what the networks traced after a pass compute; 0: before the first
verdicts/RANK          why each is kept or removed
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from curate.compute.graphs import GraphTrace
from curate.model.features import FeatureStore, FeatureTable
from curate.model.options import CurateOptions
from curate.sources.rows import RecordSource
from lemur_core.distributed.exchange import Exchange
from lemur_core.distributed.parts import PartFile, fetch_parts
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_file
from lemur_core.similarity.minhash import Banding, IntArray
from manifests.folders.manifest import Input

OPEN, KEPT, REMOVED = 0, 1, 2

GRAPHS = pa.schema(
    [
        *(("place", pa.int64()), ("graph", pa.string()), ("graph_widths", pa.string()), ("weights", pa.string())),
        *(("varies", pa.list_(pa.string())), ("answer", pa.large_string())),
    ]
)

NUMBERS = pa.schema([("place", pa.int64()), ("behavior", pa.string())])

States = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Work:
    """The folder of one run, divided into `parts` ranges of ids."""

    files: Exchange
    options: CurateOptions
    parts: int
    against: tuple[Path, ...] = ()  # for a delta: the folders that it extends
    origins: tuple[Path, ...] = ()  # extractions that codes may come from

    def assign_parts(self, ids: list[bytes]) -> IntArray:
        """Return the range that each id lies in, which is the rank of the task that owns it."""
        heads = np.array([int.from_bytes(id_[:4], "big") for id_ in ids], np.int64)
        return heads * self.parts >> 32

    def name(self, *names: str | int) -> str:
        """Return the name of a Parquet file; numbers are written with five digits."""
        return "/".join(f"{name:05d}" if isinstance(name, int) else name for name in names) + ".parquet"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that tasks receive: the fields, without the data that this process has read."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def write(self, table: pa.Table, *names: str | int) -> None:
        """Write a table atomically."""
        with atomic_file(self.files.path(name := self.name(*names))) as part:
            pq.write_table(table, part, compression="zstd")
        self.files.put(name)

    def there(self, *names: str | int) -> Path:
        """Return a file that a task has written, complete and unchanged."""
        (path,) = fetch_parts([self._part(*names)], self.files)
        return path

    def all_there(self, *names: str | int) -> list[Path]:
        """Return the files of a folder that every task of a step has written, in the order of their ranks."""
        return fetch_parts([self._part(*names, rank) for rank in range(self.parts)], self.files)

    def read(self, *names: str | int) -> pa.Table:
        """Read one table."""
        return pq.read_table(self.there(*names))

    def read_all(self, *names: str | int) -> pa.Table:
        """Read the tables of a folder that every task of a step has written, in the order of their ranks."""
        return pa.concat_tables(pq.read_table(path) for path in self.all_there(*names))

    def _part(self, *names: str | int) -> PartFile:
        """Return which task writes a file: its name ends with the rank, if it is not of a step of one task."""
        kind, *numbers = names
        step = _WRITERS[str(kind)]
        if kind == "rounds":
            step = step_name(f"{step}-{numbers[1]:02d}", int(numbers[0]))
        elif kind in ("graphs", "numbers", "states"):
            step = step_name(step, int(numbers[0]))
        alone = kind in _OF_ONE_TASK
        return PartFile(self.name(*names), step, 0 if alone else int(numbers[-1]))

    @cached_property
    def ids(self) -> list[bytes]:
        """The ids of the records, by place."""
        ids: list[bytes] = self.read("order").column("id").to_pylist()
        return ids

    def own(self, rank: int) -> IntArray:
        """Return the places that a task decides, ascending."""
        return np.flatnonzero(self.assign_parts(self.ids) == rank)

    def features(self) -> FeatureStore:
        """Open the features of all codes; not cached, since the list of a million takes 300 MB."""
        return self._features(None)

    def _features(self, only: list[bytes] | None) -> FeatureStore:
        tables = [self._part("features", rank) for rank in range(self.parts)]
        sets = [replace(part, name=str(Path(part.name).with_suffix(".shingles"))) for part in tables]
        fetch_parts(tables + sets, self.files, whole=only is None)  # others read only some rows
        return FeatureStore(self.options.tokens, self.files.here / "features", only)

    def read_features(self, places: IntArray) -> FeatureTable:
        """Return the features of some places, numbered by their order in `places`."""
        ids = [self.ids[place] for place in places.tolist()]
        return self._features(ids).table(ids)

    @property
    def banding(self) -> Banding:
        """The bands that find every pair of the exact join."""
        (path,) = fetch_parts([PartFile(BANDING, "records", 0)], self.files)
        bands: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
        return Banding(**bands)

    def states(self, at: int, before: int) -> States:
        """Return the decisions of the earlier rounds in a pass, by place."""
        states = np.full(len(self.ids), OPEN, np.uint8)
        for number in range(before):
            decided = self.read_all("rounds", at, number)
            states[decided["place"].to_numpy()] = decided["state"].to_numpy()
        return states

    def read_decisions(self, at: int) -> States:
        """Return the decisions of a pass, by place."""
        states: States = self.read("states", at)["state"].to_numpy()
        return states

    def last_pass(self, up_to: int) -> int:
        """Return the last pass that has something to decide: graphs were traced after the one before."""
        while up_to > 1 and not self.graphs_after(up_to - 1, ["place"]).num_rows:
            up_to -= 1
        return up_to

    def graphs_after(self, at: int, columns: list[str]) -> pa.Table:
        """Return the traces after a pass: `place`, the identities (null if none), `answer`."""
        if not self._has_graphs(at):
            return GRAPHS.empty_table().select(columns)
        return pa.concat_tables(pq.read_table(path, columns=columns) for path in self.all_there("graphs", at))

    def _has_graphs(self, at: int) -> bool:
        before = self.options.graphs in ("all", "keep-different")  # all are traced before the first pass
        return self.options.graphs != "off" and before == (at == 0)

    def read_traces(self, at: int, *, measured: int | None = None) -> dict[int, GraphTrace]:
        """Return the computations of the codes that were traced before a pass, by place; only the identities.

        Args: measured: the pass before which numbers were measured, if not the same.
        """
        columns = [name for name in GRAPHS.names if name != "answer"]
        tables = (self.graphs_after(earlier, columns) for earlier in range(at))
        traces = {row.pop("place"): GraphTrace(row) for table in tables for row in table.to_pylist()}
        for place, behavior in self._read_behaviors(at if measured is None else measured):
            traces[place] = traces[place].with_behavior(behavior)
        return traces

    def _read_behaviors(self, at: int) -> Iterator[tuple[int, str | None]]:
        """Yield the measurements before a pass, by place."""
        for earlier in range(at):
            if self._has_graphs(earlier):
                for row in self.read_all("numbers", earlier).to_pylist():
                    yield row["place"], row["behavior"]

    def own_answers(self, at: int, rank: int) -> Iterator[tuple[int, Json]]:
        """Yield the sandbox's answers on the task's own codes that were traced up to a pass, by place."""
        for earlier in filter(self._has_graphs, range(at + 1)):
            for row in pq.read_table(self.there("graphs", earlier, rank), columns=["place", "answer"]).to_pylist():
                yield row["place"], json.loads(row["answer"])

    def answers(self, passes: int) -> Json:
        """Return the sandbox's answers on all traced codes, by id."""
        tables = (self.graphs_after(at, ["place", "answer"]) for at in range(passes + 1))
        rows = (row for table in tables for row in table.to_pylist())
        answers = {self.ids[row["place"]].hex(): json.loads(row["answer"]) for row in rows}
        for place, behavior in self._read_behaviors(passes + 1):
            answers[self.ids[place].hex()]["behavior"] = behavior
        return answers


#: The steps that write the files, by the first word of their names.
_WRITERS = {
    **dict.fromkeys(("rows", "codes"), "source"),
    **dict.fromkeys(("order", "elements"), "records"),
    "rounds": "round",
    **{name: name for name in ("features", "keys", "links", "graphs", "numbers")},
    "states": "finish",
    "verdicts": "witnesses",
}
_OF_ONE_TASK = ("rows", "codes", "order", "elements", "states")
BANDING, SOURCE = "banding.json", "source.json"


def step_name(step: str, at: int) -> str:
    """Return the name of a step in a pass; only passes after the first are named."""
    return step if at <= 1 else f"pass-{at}-{step}"


class StoredRows(RecordSource):
    """The rows of a source as read when the run began, and what it stated about itself."""

    def __init__(self, work: Work) -> None:
        self._work = work
        (path,) = fetch_parts([PartFile(SOURCE, "source", 0)], work.files)
        self._description: Json = json.loads(path.read_text(encoding="utf-8"))
        super().__init__(self._description["name"], self._description["where"])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches as they were read."""
        with pq.ParquetFile(self._work.there("rows", 0)) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group).combine_chunks().to_batches()[0]

    def inputs(self) -> list[Input]:
        """Return the inputs that were read."""
        return [Input.model_validate(item) for item in self._description["inputs"]]

    def files(self) -> list[Path]:
        """Return the files that are accessible from here."""
        return [path for name in self._description["files"] if (path := Path(name)).exists()]

    def license(self, stated: str | None) -> str:  # noqa: ARG002 (stated when the run began)
        """Return the license expression of the rows."""
        text: str = self._description["license"]
        return text
