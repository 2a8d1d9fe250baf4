"""The features of all codes of one run, as columns; what several codes share is stored once."""

import os
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.pretrained import Evidence
from lemur_core.similarity.minhash import PERMUTATIONS, IntArray


class FeatureTable:
    """Columns over codes 0..n-1. Equal digests got equal numbers; -1 stands for a code that has no features.

    `tree`, `literal`, `shingle_set`, `fingerprint`: int64 of shape (n,), numbers of classes of equal codes.
    `signatures`: uint32 of shape (shingle sets, 256). `elements[f]`: the hashes of fingerprint f, sorted.
    """

    def __init__(self, count: int) -> None:
        self.problems: dict[int, str] = {}
        self.tree: IntArray = np.full(count, -1, np.int64)
        self.literal: IntArray = np.full(count, -1, np.int64)
        self.shingle_set: IntArray = np.full(count, -1, np.int64)
        self.fingerprint: IntArray = np.full(count, -1, np.int64)
        self.lines: IntArray = np.zeros(count, np.int64)
        self.family: list[str] = [""] * count
        self.pretrained: dict[int, tuple[Evidence, ...]] = {}
        self.signatures: npt.NDArray[np.uint32] = np.empty((0, PERMUTATIONS), np.uint32)
        self.elements: list[npt.NDArray[np.uint64]] = []
        self.set_sizes: IntArray = np.empty(0, np.int64)
        self._places: list[tuple[int, int]] = []  # of shingle sets: (open file, byte)

    def __len__(self) -> int:
        return len(self.tree)

    def shingles(self, shingle_set: int) -> npt.NDArray[np.uint64]:
        """The sorted distinct shingle hashes of one set, read from disk."""
        handle, at = self._places[shingle_set]
        return np.frombuffer(os.pread(handle, int(self.set_sizes[shingle_set]) * 8, at), np.uint64)


class TableBuilder:
    """Puts a FeatureTable together from shards of the store, in any order."""

    def __init__(self, count: int) -> None:
        self._table = FeatureTable(count)
        self._classes: dict[str, dict[bytes, int]] = {"tree": {}, "literal": {}, "shingle_set": {}, "fingerprint": {}}
        self._signatures: list[bytes] = []
        self._sizes: list[int] = []

    def fill(self, positions: list[int], rows: pa.Table, blob: Path) -> None:
        """Add codes: row i of `rows` belongs at `positions[i]`; their shingle sets lie in the file `blob`."""
        table = self._table
        columns = {name: rows.column(name).to_pylist() for name in rows.column_names if name != "signature"}
        signatures = rows.column("signature").combine_chunks()
        handle = os.open(blob, os.O_RDONLY)
        weakref.finalize(table, os.close, handle)
        for row, position in enumerate(positions):
            if (problem := columns["problem"][row]) is not None:
                table.problems[position] = problem
                continue
            for name, numbers in self._classes.items():
                digest = columns[name][row]
                number = numbers.setdefault(digest, len(numbers))
                getattr(table, name)[position] = number
                if name == "shingle_set" and number == len(self._sizes):
                    self._signatures.append(signatures[row].as_py())
                    self._sizes.append(columns["shingles_count"][row])
                    table._places.append((handle, columns["shingles_at"][row]))
                elif name == "fingerprint" and number == len(table.elements):
                    table.elements.append(np.frombuffer(columns["elements"][row], np.uint64))
            table.family[position] = columns["family"][row]
            table.lines[position] = columns["lines"][row]
            if columns["pretrained"][row]:
                found = tuple(Evidence(item["line"], item["text"]) for item in columns["pretrained"][row])
                table.pretrained[position] = found

    def finish(self) -> FeatureTable:
        """The table; the builder is spent."""
        table = self._table
        flat = np.frombuffer(b"".join(self._signatures), np.uint32)
        table.signatures = flat.reshape(len(self._signatures), PERMUTATIONS)
        table.set_sizes = np.array(self._sizes, np.int64)
        return table
