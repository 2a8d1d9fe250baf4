"""How time and memory of `lemur curate` grow with the corpus: `python -m benchmarks.growth [ROWS ...]`.

Runs cold (no features cached) on mutated LEMUR codes and fits seconds = c * rows ** exponent.
Claim: exponent at most 1.15; a million records within 12 GB.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measure import Cost, measure
from benchmarks.mutations import write_corpus
from lemur_core.files.cache import cache_folder


def main(sizes: list[int]) -> None:
    """Measure each size and print the fit."""
    costs: list[Cost] = []
    for rows in sizes:
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            corpus = Path(scratch) / "corpus.parquet"
            write_corpus(corpus, rows)
            env = {**os.environ, "LEMUR_CURATOR_CACHE": scratch}
            lemur = str(Path(sys.executable).with_name("lemur"))
            costs.append(measure([lemur, "curate", str(corpus), "--graph", "off", "--out", f"{scratch}/out"], env))
        print(f"{rows:>10,} rows {costs[-1]}", flush=True)
    if len(sizes) > 1:
        exponent = np.polyfit(np.log(sizes), np.log([cost.wall for cost in costs]), 1)[0]
        print(f"fitted exponent of wall time: {exponent:.3f} (claim: at most 1.15)")


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [10_000, 100_000, 1_000_000])
