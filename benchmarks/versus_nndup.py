"""`lemur curate` against the released nn-dup on the same rows: `python -m benchmarks.versus_nndup [--rows N]`.

Both run as whole commands, one after the other, in this very run. The peer gets its rows from memory (its own database
takes minutes to build; that is not counted), ours starts with the wheel in the cache and reads it.

Claims: with an empty feature cache at least 20 times faster in wall time, at most half of the peak memory; with a warm
one at least 5 times faster again.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Cost, measure
from curate.sources.lemur import LemurRelease
from lemur_core.files.cache import cache_folder

#: Runs the peer on the rows of a Parquet file; `ab.nn.api` is replaced, since it would build LEMUR's database.
_PEER = """
import sys, types
from pathlib import Path
import pandas, pyarrow.parquet
api, nn = types.ModuleType("ab.nn.api"), types.ModuleType("ab.nn")
api.data = lambda only_best_accuracy: pyarrow.parquet.read_table(sys.argv[1]).to_pandas()
nn.api = api
sys.modules["ab.nn"], sys.modules["ab.nn.api"] = nn, api
from ab.dup.preprocessing import curate_from_lemur
curate_from_lemur(Path(sys.argv[2]))
"""


def main() -> None:
    """Run ours cold and warm, then the peer; print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="only the rows of the first networks, about this many (default: all)")
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        work = Path(scratch)
        source = _prepare(work, rows)
        env = {**os.environ, "LEMUR_CURATOR_CACHE": scratch, "PYTHONHASHSEED": "0"}
        lemur = [str(Path(sys.executable).with_name("lemur")), "curate", source, "--force", "--out"]
        by_text = [*lemur, f"{scratch}/strict", "--graph", "off"]  # the peer runs no code
        cold = measure(by_text, env)
        print(f"lemur, no features cached  {cold}", flush=True)
        warm = measure(by_text, env)
        print(f"lemur, features cached     {warm}", flush=True)
        peer = run_peer(work / "rows.parquet", work / "peer", env)
        print(f"nn-dup 2.2.4               {peer}", flush=True)
        print(f"cold: {peer.wall / cold.wall:.1f}x faster than the peer in wall time (claim: 20x)")
        print(f"cold: {cold.peak_mib / peer.peak_mib:.2f} of the peer's peak memory (claim: at most 0.50)")
        print(f"warm: {cold.wall / warm.wall:.1f}x faster than cold (claim: 5x)")
        print(f"peer kept {len(read_peer(work / 'peer').splits):,} rows")


class PeerDecisions(NamedTuple):
    """What nn-dup decided: the split of each row that it kept, and the stage of each that it removed."""

    splits: dict[int, str]
    stages: dict[int, str]


def run_peer(rows: Path, out: Path, env: Mapping[str, str] = os.environ) -> Cost:
    """Run nn-dup on the rows of a Parquet file."""
    return measure([sys.executable, "-P", "-c", _PEER, str(rows), str(out)], env)


def read_peer(out: Path) -> PeerDecisions:
    """Return what nn-dup wrote, by the number of the row, which ends its ids."""
    splits, tombstones = (json.loads((out / f"{name}.json").read_text()) for name in ("splits", "tombstones"))
    kept = {int(id_.rpartition("_")[2]): split for id_, split in splits.items()}
    removed = {int(id_.rpartition("_")[2]): item["reason"].split("_")[0] for id_, item in tombstones.items()}
    return PeerDecisions(kept, {row: stage for row, stage in removed.items() if row not in kept})


def _prepare(work: Path, limit: int | None) -> str:
    """Write the peer's rows; returns the source for ours (the release itself when all rows are wanted)."""
    release = LemurRelease()
    table = pa.Table.from_batches(list(release.batches())).drop_columns(["problem"])
    if limit is None:
        folder = cache_folder("lemur", release.version)
        shutil.copytree(folder, work / "lemur" / release.version, ignore=shutil.ignore_patterns("*.parquet"))
    else:
        table = table.slice(0, limit)
    pq.write_table(table, work / "rows.parquet", compression="zstd")
    return "lemur" if limit is None else str(work / "rows.parquet")


if __name__ == "__main__":
    main()
