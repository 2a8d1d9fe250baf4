"""The best recorded result of each network on each benchmark."""

from collections.abc import Sequence

import numpy as np

from curate.chat.subject import Best
from curate.corpus import Corpus


def best_results(corpus: Corpus, codes: Sequence[int]) -> dict[int, tuple[Best, ...]]:
    """For each code one result by task, dataset and metric: the highest value, and the fewest epochs that gave it."""
    wanted = np.flatnonzero(np.isin(corpus.code_of_row, np.array(codes, np.int64)))
    rows = corpus.rows.take(wanted).select(["task", "dataset", "metric", "epoch", "accuracy"]).to_pylist()
    best: dict[int, dict[tuple[str, str, str], Best]] = {}
    for code, row in zip(corpus.code_of_row[wanted].tolist(), rows, strict=True):
        benchmark = row["task"], row["dataset"], row["metric"]
        value = row["accuracy"]
        if None in benchmark or value is None or not np.isfinite(value):
            continue
        found = Best(*benchmark, accuracy=value, epoch=row["epoch"])
        known = best.setdefault(code, {}).setdefault(benchmark, found)
        if _rank(found) < _rank(known):
            best[code][benchmark] = found
    return {code: tuple(found[benchmark] for benchmark in sorted(found)) for code, found in best.items()}


def _rank(best: Best) -> tuple[float, float]:
    return -best.accuracy, float("inf") if best.epoch is None else best.epoch
