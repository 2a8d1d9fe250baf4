"""How much storage two versions of a table share: `python -m benchmarks.chunks TABLE.parquet [ROWS]`.

The table is written whole and without ROWS of its rows (100 by default), which a seed draws or which lie together, each
twice: as we write tables, and with the same groups of rows and compression, but without content-defined pages. Files
are then cut as the Hub's storage does, at 64 KiB on average (8 to 128 KiB) where a rolling hash of 64 bytes says so,
and the bytes of the larger version's pieces that the smaller one has are counted. The hash is our own: cuts lie
elsewhere, as often.
"""

import hashlib
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.folders.tables import open_writer

_SMALLEST, _LARGEST = 8 << 10, 128 << 10
_BITS = 16  # of the hash that must be zero: 64 KiB on average
_WINDOW = 64  # bytes
_GROUP = 2_000  # rows, as in `write_table`


def main() -> None:
    """Write, cut and compare."""
    table = pq.read_table(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    start = len(table) // 3
    drawn, together = {*random.Random(0).sample(range(len(table)), count)}, {*range(start, start + count)}
    print(f"{sys.argv[1]}: {len(table):,} rows; {count} of them new")
    with tempfile.TemporaryDirectory() as name:
        for plain in (True, False):
            new = write(Path(name) / "part", table, plain=plain)
            shares = []
            for left_out in (drawn, together):
                before = table.take([row for row in range(len(table)) if row not in left_out])
                known = {digest for digest, _ in cut(write(Path(name) / "part", before, plain=plain))}
                shares.append(sum(size for digest, size in cut(new) if digest in known) / len(new))
            how = "without" if plain else "with"
            told = f"shared where new rows are drawn {shares[0]:6.1%}, lie together {shares[1]:6.1%}"
            print(f"{how:>8} content-defined pages: {len(new):>12,} bytes; {told}")


def write(path: Path, table: pa.Table, *, plain: bool) -> bytes:
    """The bytes of a table, in groups of rows as we write them."""
    writer = pq.ParquetWriter(path, table.schema, compression="zstd") if plain else open_writer(path, table.schema)
    with writer:
        for start in range(0, len(table), _GROUP):
            writer.write_table(table.slice(start, _GROUP))
    return path.read_bytes()


def cut(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the digest and the size of each piece."""
    values = np.random.default_rng(0).integers(0, 1 << 63, 256, dtype=np.uint64)[np.frombuffer(data, np.uint8)]
    rolling = np.zeros(len(data), np.uint64)
    for age in range(_WINDOW):  # each byte counts in the 64 hashes after it, shifted by its age
        rolling[age:] += values[: len(data) - age] << np.uint64(age)
    places = np.flatnonzero(rolling >> np.uint64(64 - _BITS) == 0) + 1
    start = 0
    for place in [*places.tolist(), len(data)]:
        while place - start > _LARGEST:
            yield _piece(data, start, start + _LARGEST)
            start += _LARGEST
        if place - start >= _SMALLEST or place == len(data):
            yield _piece(data, start, place)
            start = place


def _piece(data: bytes, start: int, end: int) -> tuple[bytes, int]:
    return hashlib.sha256(data[start:end]).digest(), end - start


if __name__ == "__main__":
    main()
