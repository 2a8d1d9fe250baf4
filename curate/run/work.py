"""The files that the tasks of a curation exchange: Parquet by hash range of ids, in a folder or at an address.

plan.json            the request
source.json, rows/   what the source states about itself, and its rows as read
codes/PART           the distinct codes of a range of ids
features/PART        their features, as in the cache
chosen/PASS          the networks to trace in a pass, with the arguments of their records
graphs/PASS/PART     what they compute
numbers/PASS/PART    the same in numbers, of those that may compute what another network does
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curate.model.features import FeatureStore
from curate.model.options import CurateOptions
from curate.sources.rows import RecordSource
from lemur_core.distributed.exchange import Exchange, PartFile, fetch_parts
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_file
from lemur_core.similarity.minhash import IntArray
from manifests.folders.manifest import Input
from manifests.folders.tables import iterate_rows

SOURCE = "source.json"
CODES = pa.schema([("id", pa.binary(32)), ("code", pa.large_string())])
CHOSEN = pa.schema([("id", pa.binary(32)), *((name, pa.string()) for name in ("task", "dataset", "prm"))])
GRAPHS = pa.schema(
    [
        *(("id", pa.binary(32)), ("graph", pa.string()), ("graph_widths", pa.string()), ("weights", pa.string())),
        *(("varies", pa.list_(pa.string())), ("answer", pa.large_string())),
    ]
)
NUMBERS = pa.schema([("id", pa.binary(32)), ("behavior", pa.string())])


def step_name(kind: str, at: int) -> str:
    """Return the name of a pass's step."""
    return kind if at == 1 else f"pass-{at}-{kind}"


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

    def write(self, table: pa.Table, *names: str | int) -> None:
        """Write a table atomically."""
        with atomic_file(self.files.path(name := self.name(*names))) as part:
            pq.write_table(table, part, compression="zstd")
        self.files.put(name)

    def find(self, *names: str | int) -> Path:
        """Return a file that a task has written, complete and unchanged."""
        return fetch_parts([self._part(*names)], self.files)[0]

    def read(self, *names: str | int) -> pa.Table:
        """Read one table."""
        return pq.read_table(self.find(*names))

    def find_all(self, *names: str | int) -> list[Path]:
        """Return the files of a folder that every task of a step has written, in the order of their ranks."""
        return fetch_parts([self._part(*names, rank) for rank in range(self.parts)], self.files)

    def _part(self, *names: str | int) -> PartFile:
        """Return which task writes a file: its name ends with the rank, if it is not of a step of one task."""
        kind, *numbers = names
        if kind in ("rows", "codes"):
            step = "source"
        else:
            step = "features" if kind == "features" else step_name(_STEP_OF[str(kind)], int(numbers[0]))
        alone = kind in ("rows", "codes", "chosen")
        return PartFile(self.name(*names), step, 0 if alone else int(numbers[-1]))

    def open_features(self) -> FeatureStore:
        """Open the features of all codes."""
        tables = [self._part("features", rank) for rank in range(self.parts)]
        sets = [replace(part, name=str(Path(part.name).with_suffix(".shingles"))) for part in tables]
        fetch_parts(tables + sets, self.files)
        return FeatureStore(self.options.tokens, self.files.here / "features")

    def read_answers(self, passes: int, *, rank: int | None = None, whole: bool = False) -> dict[bytes, Json]:
        """Return the sandbox's answers on the networks traced in the first passes, by id.

        Args: rank: only the task's own networks. whole: not only what tells computations apart.
        """
        columns = ["id", "answer"] if whole else [name for name in GRAPHS.names if name != "answer"]
        answers: dict[bytes, Json] = {}
        for at in range(1, passes + 1):
            for path in self.find_all("graphs", at) if rank is None else [self.find("graphs", at, rank)]:
                for row in pq.read_table(path, columns=columns).to_pylist():
                    answers[row.pop("id")] = json.loads(row["answer"]) if whole else row
        return answers

    def read_measured_answers(self, passes: int, *, whole: bool = False) -> dict[str, Json]:
        """Return the answers by id in hexadecimal, with the numbers that the same passes have measured."""
        answers = self.read_answers(passes, whole=whole)
        for row in (
            row for at in range(1, passes + 1) for path in self.find_all("numbers", at) for row in iterate_rows(path)
        ):
            answers[row["id"]]["behavior"] = row["behavior"]
        return {id_.hex(): answer for id_, answer in answers.items()}

    def read_networks(self, rank: int, passes: Sequence[int]) -> tuple[list[Json], Callable[[int], str]]:
        """Return the task's own networks of some passes, and a function from the place of one to its code."""
        rows = [row for at in passes for row in self.read("chosen", at).to_pylist()]
        parts = self.assign_parts([row["id"] for row in rows])
        own = [row for row, part in zip(rows, parts.tolist(), strict=True) if part == rank]
        wanted = {row["id"] for row in own}
        codes = {row["id"]: row["code"] for row in iterate_rows(self.find("codes", rank)) if row["id"] in wanted}
        return own, lambda place: codes[own[place]["id"]]


#: The steps of a pass that write files, by the first word of their names.
_STEP_OF = {"chosen": "choose", "graphs": "graphs", "numbers": "numbers"}


class StoredRows(RecordSource):
    """The rows of a source as read when the run began, and what it stated about itself."""

    def __init__(self, work: Work) -> None:
        self._work = work
        (path,) = fetch_parts([PartFile(SOURCE, "source", 0)], work.files)
        self._description: Json = json.loads(path.read_text(encoding="utf-8"))
        super().__init__(self._description["name"], self._description["where"])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches as they were read."""
        with pq.ParquetFile(self._work.find("rows", 0)) as file:
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
        return str(self._description["license"])
