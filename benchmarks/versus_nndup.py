"""`lemur curate` against the released nn-dup on the same rows: `python -m benchmarks.versus_nndup [--rows N]`.

Both run as whole commands, one after the other, in this very run. The peer gets its rows from memory (its own database
takes minutes to build; that is not counted), ours starts with the wheel in the cache and reads it.

Claims: with an empty feature cache at least 20 times faster in wall time, at most half of the peak memory; with a warm
one at least 5 times faster again. In profile nn-dup the decisions are the peer's, row by row.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

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
    """Run the peer, then ours cold, warm, and in profile nn-dup; print the ratios."""
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
        same = measure([*lemur, f"{scratch}/nn-dup", "--profile", "nn-dup"], env)
        print(f"lemur --profile nn-dup     {same}", flush=True)
        peer = measure([sys.executable, "-P", "-c", _PEER, f"{scratch}/rows.parquet", f"{scratch}/peer"], env)
        print(f"nn-dup 2.2.4               {peer}", flush=True)
        _print_ratios(peer, cold, warm, same)
        _compare(work)


def _print_ratios(peer: Cost, cold: Cost, warm: Cost, same: Cost) -> None:
    print(f"cold: {peer.wall / cold.wall:.1f}x faster than the peer in wall time (claim: 20x)")
    print(f"cold: {cold.peak_mib / peer.peak_mib:.2f} of the peer's peak memory (claim: at most 0.50)")
    print(f"warm: {cold.wall / warm.wall:.1f}x faster than cold (claim: 5x)")
    print(f"profile nn-dup: {peer.wall / same.wall:.1f}x faster than the peer")


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


def _compare(work: Path) -> None:
    """Row by row: the peer's record of each row against the decision of profile nn-dup."""
    kept = {_row(item["id"]) for item in json.loads((work / "peer" / "kept_records.json").read_text())}
    tombstones: dict[str, dict[str, Any]] = json.loads((work / "peer" / "tombstones.json").read_text())
    stages = {_row(id_): item["reason"].split("_")[0] for id_, item in tombstones.items()}
    splits = {_row(id_): split for id_, split in json.loads((work / "peer" / "splits.json").read_text()).items()}
    decisions = pq.read_table(work / "nn-dup" / "decisions.parquet").to_pylist()
    ours = {item["row"]: item["stage"] for item in decisions}
    different = [row for row, stage in ours.items() if (None if row in kept else stages.get(row, "invalid")) != stage]
    print(f"profile nn-dup: {len(different):,} of {len(ours):,} rows decided differently from the peer")
    print(f"peer kept {len(kept):,} ({dict(sorted(Counter(splits.values()).items()))})")


def _row(record_id: str) -> int:
    return int(record_id.rpartition("_")[2])


if __name__ == "__main__":
    main()
