"""Features on disk, by content: a second run, or the next release, works out only what is new.

A shard is a pair of files that never change: `NAME.parquet`, a row for each code, and `NAME.shingles`, the shingle
sets as raw 64-bit numbers (read piecewise by offset, so that a million sets need no memory). Shards are named by their
content and renamed into place, so that runs side by side cannot disturb each other.
"""

import hashlib
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.features import FEATURES_VERSION, Features
from curate.pretrained import Evidence
from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.progress import note
from lemur_core.similarity.minhash import PERMUTATIONS, IntArray
from lemur_core.similarity.tokens import Detail


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


_SCHEMA = pa.schema(
    [
        ("id", pa.binary(32)),
        ("problem", pa.string()),
        ("tree", pa.binary(16)),
        ("literal", pa.binary(16)),
        ("shingle_set", pa.binary(16)),
        ("shingles_at", pa.int64()),
        ("shingles_count", pa.int32()),
        ("signature", pa.binary()),
        ("fingerprint", pa.binary(16)),
        ("elements", pa.binary()),
        ("family", pa.string()),
        ("pretrained", pa.list_(pa.struct([("line", pa.int32()), ("text", pa.string())]))),
        ("lines", pa.int32()),
    ]
)

#: Codes a shard: what a crash may cost, against the number of files.
SHARD_CODES = 20_000


class FeatureStore:
    """The features of all codes seen so far, for one definition of tokens."""

    def __init__(self, detail: Detail) -> None:
        self._folder = cache_folder("features", f"v{FEATURES_VERSION}-{detail}")
        self._pending: list[tuple[bytes, Features | str]] = []
        self._shards: list[Path] = []
        self._known: dict[bytes, tuple[int, int]] = {}
        for path in sorted(self._folder.glob("*.parquet")):
            self._open(path)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    def add(self, digest: bytes, features: Features | str) -> None:
        """Take the features of one code; they are on disk after the next `flush`, at the latest a shard later."""
        self._pending.append((digest, features))
        if len(self._pending) >= SHARD_CODES:
            self.flush()

    def flush(self) -> None:
        """Write what was added since the last shard."""
        if not self._pending:
            return
        rows, blob = _shard_rows(self._pending)
        table = pa.Table.from_pylist(rows, schema=_SCHEMA)
        name = hashlib.sha256(b"".join(digest for digest, _ in self._pending)).hexdigest()[:24]
        path = self._folder / f"{name}.parquet"
        with atomic_file(path.with_suffix(".shingles")) as part:
            part.write_bytes(blob)
        with atomic_file(path) as part:  # last: a shard exists once this file does
            pq.write_table(table, part, compression="zstd", compression_level=1)
        self._pending = []
        self._open(path)

    def table(self, digests: Sequence[bytes]) -> FeatureTable:
        """The features of these codes, in this order; all must have been added and flushed."""
        places = [self._known[digest] for digest in digests]
        builder = TableBuilder(len(places))
        by_shard: dict[int, list[tuple[int, int]]] = {}
        for position, (shard, row) in enumerate(places):
            by_shard.setdefault(shard, []).append((row, position))
        for shard, wanted in sorted(by_shard.items()):
            table = pq.read_table(self._shards[shard], columns=_SCHEMA.names[1:])
            rows = pa.array([row for row, _ in wanted], pa.int64())
            builder.fill([position for _, position in wanted], table.take(rows), self._blob(shard))
        return builder.finish()

    def _blob(self, shard: int) -> Path:
        return self._shards[shard].with_suffix(".shingles")

    def _open(self, path: Path) -> None:
        try:
            index = pq.read_table(path, columns=["id", "shingles_at", "shingles_count"])
            ends = pc.add(index["shingles_at"], pc.multiply(index["shingles_count"].cast(pa.int64()), 8))
            complete = path.with_suffix(".shingles").stat().st_size == (pc.max(ends).as_py() or 0)
        except (OSError, pa.ArrowInvalid, KeyError):
            complete = False
        if not complete:
            note(f"feature cache: {path.name} is damaged and was dropped; its features are worked out anew")
            path.unlink(missing_ok=True)
            return
        shard = len(self._shards)
        self._shards.append(path)
        for row, digest in enumerate(index["id"].to_pylist()):
            self._known.setdefault(digest, (shard, row))


def _shard_rows(pending: list[tuple[bytes, Features | str]]) -> tuple[list[dict[str, object]], bytes]:
    rows: list[dict[str, object]] = []
    pieces: list[bytes] = []
    places: dict[bytes, int] = {}
    end = 0
    for digest, features in pending:
        if isinstance(features, str):
            rows.append({"id": digest, "problem": features})
            continue
        if features.shingle_set not in places:
            pieces.append(features.shingles.tobytes())
            places[features.shingle_set] = end
            end += len(pieces[-1])
        rows.append(
            {
                "id": digest,
                "tree": features.tree,
                "literal": features.literal,
                "shingle_set": features.shingle_set,
                "shingles_at": places[features.shingle_set],
                "shingles_count": len(features.shingles),
                "signature": features.signature.tobytes(),
                "fingerprint": features.fingerprint,
                "elements": features.elements.tobytes(),
                "family": features.family,
                "pretrained": [{"line": item.line, "text": item.text} for item in features.pretrained],
                "lines": features.lines,
            }
        )
    return rows, b"".join(pieces)
