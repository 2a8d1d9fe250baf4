"""The score of a row: the percentile of its accuracy among the networks evaluated on the same benchmark.

A benchmark is one task, dataset, metric and epoch; accuracies of different ones are never compared raw. Each network
enters with its best accuracy there. The percentile is (networks below + half of those equal) / networks, so that the
only network of a benchmark gets 0.5 and no benchmark's winner gets more than the size of its field warrants.

Source: Hazen's plotting position; Hyndman and Fan 1996, "Sample quantiles in statistical packages".
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def row_scores(rows: pa.Table, usable: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Scores in (0, 1) of all usable rows, shape (rows,); NaN where a row is not usable or has no accuracy."""
    accuracy = rows.column("accuracy").to_numpy().astype(np.float64)
    scores = np.full(len(accuracy), np.nan)
    chosen = np.flatnonzero(usable & np.isfinite(accuracy))
    if not len(chosen):
        return scores
    benchmark = _benchmarks(rows)[chosen]
    network = _codes(rows.column("nn"))[chosen]
    values = accuracy[chosen]
    order = np.lexsort((values, network, benchmark))
    last = np.ones(len(order), bool)
    last[:-1] = (benchmark[order][1:] != benchmark[order][:-1]) | (network[order][1:] != network[order][:-1])
    best = order[last]  # one entry for each network of each benchmark: its best accuracy
    field = np.lexsort((values[best], benchmark[best]))
    field_benchmark, field_value = benchmark[best][field], values[best][field]
    starts = np.searchsorted(field_benchmark, np.arange(benchmark.max() + 2))
    by_benchmark = np.argsort(benchmark, kind="stable")
    bounds = np.searchsorted(benchmark[by_benchmark], np.arange(benchmark.max() + 2))
    for number in range(len(bounds) - 1):
        members = by_benchmark[bounds[number] : bounds[number + 1]]
        if not len(members):
            continue
        peers = field_value[starts[number] : starts[number + 1]]
        below = np.searchsorted(peers, values[members], side="left")
        up_to = np.searchsorted(peers, values[members], side="right")
        scores[chosen[members]] = (below + up_to) / (2 * len(peers))
    return scores


def _benchmarks(rows: pa.Table) -> npt.NDArray[np.int64]:
    """A dense number for each distinct (task, dataset, metric, epoch)."""
    columns = [_codes(rows.column(name)) for name in ("task", "dataset", "metric", "epoch")]
    _, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64)


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    numbers: npt.NDArray[np.int64] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers
