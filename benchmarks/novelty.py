"""How long `Snapshot.novelty` takes once loaded: `python -m benchmarks.novelty SNAPSHOT [CODES]`.

Asks about codes that the snapshot removed (200 by default), each with a comment line that no cache has seen: by text
and structure, then by graph, too, on one sandbox server that is warm. Prints wall and CPU milliseconds, the median and
the 95th percentile. CPU is that of all processes, so a busy machine does not change it much.
Claim: at most 20 ms for text and structure, at most 150 ms with the graph.
"""

import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq

from curate import Snapshot


def main(folder: Path, count: int) -> None:
    """Measure and print."""
    snapshot = Snapshot(folder)
    codes = pq.read_table(folder / "networks.parquet", columns=["nn_code"], filters=[("kept", "=", False)])[
        "nn_code"
    ].to_pylist()
    chosen = random.Random(0).sample(codes, min(count, len(codes)))
    for graph, label in ((False, "text and structure"), (True, "with the graph")):
        started = time.perf_counter()
        snapshot.novelty(f"# first {os.getpid()}\n{chosen[0]}", graph=graph)
        loaded = time.perf_counter() - started
        spent: list[tuple[float, float]] = []
        known = traced = 0
        for number, code in enumerate(chosen):
            before = time.perf_counter(), _cpu_seconds()
            novelty = snapshot.novelty(f"# {os.getpid()} {number}\n{code}", graph=graph)
            spent.append((time.perf_counter() - before[0], _cpu_seconds() - before[1]))
            known += novelty.known
            traced += novelty.error is None
        wall, cpu = (np.percentile([1000 * pair[kind] for pair in spent], [50, 95]) for kind in (0, 1))
        print(
            f"{label:<20} {len(chosen)} codes: wall p50 {wall[0]:.1f} ms, p95 {wall[1]:.1f} ms;"
            f" CPU p50 {cpu[0]:.1f} ms, p95 {cpu[1]:.1f} ms; {known} known, {traced} traced; loaded in {loaded:.1f} s",
            flush=True,
        )


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process, the sandbox's server and its jobs that ended."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return time.process_time() + float(sum(t.user + t.system + t.children_user + t.children_system for t in times))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200)
