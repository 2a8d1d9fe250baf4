"""The results of a network: percentiles of its rows, the score of a code, its best result, values off the scale.

A benchmark is one task, dataset, metric and epoch; accuracies of different ones are never compared raw. Each network
enters with its best accuracy there. The percentile of a row is (networks below + half of those equal) / networks, so
that the only network of a benchmark gets 0.5 and no benchmark's winner gets more than the size of its field warrants.

The score of a code is not its best percentile: the best of many rows is high by chance, and the more so in small
fields. It is the mean of its percentiles, first over the epochs of each data set, then over the data sets, weighted by
the size of the fields and drawn to the middle as by one more data set with a median result. Worked example: percentiles
0.9 among 90 networks and 0.6 among 10 weigh 90 / 100 and 10 / 20; if they are two epochs of one data set, its mean is
(0.9 * 0.9 + 0.5 * 0.6) / 1.4 = 0.793, and the score (0.9 * 0.793 + 0.5) / (0.9 + 1) = 0.639.

Source: Hazen's plotting position; Hyndman and Fan 1996, "Sample quantiles in statistical packages".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.model.corpus import LoadedRecords

#: The number of networks in a field at which a percentile in it counts half.
HALF_FIELD = 10

#: The weight of the median result that draws a score to the middle: that of one data set with a large field. For
#: networks of LEMUR with several data sets, the score of all but one foretells the mean percentile on that one with a
#: mean squared error of 0.079; the mean without a prior has 0.094, the best percentile 0.211.
PRIOR = 1.0

_DATASET = ("task", "dataset", "metric")
_BENCHMARK = (*_DATASET, "epoch")


@dataclass(frozen=True, slots=True)
class RowRanks:
    """The place of each row on its benchmark; arrays by row, NaN if it is unusable or has no accuracy."""

    percentiles: npt.NDArray[np.float64]  # in (0, 1)
    weights: npt.NDArray[np.float64]  # in (0, 1), by the number of networks in the field

    @property
    def shrunk_percentiles(self) -> npt.NDArray[np.float64]:
        """The percentiles drawn to the middle by their weights: of two equal ones that in the larger field counts."""
        return 0.5 + self.weights * (self.percentiles - 0.5)


def rank_rows(rows: pa.Table, usable: npt.NDArray[np.bool_]) -> RowRanks:
    """Rank all usable rows with an accuracy on their benchmarks."""
    accuracy = rows.column("accuracy").to_numpy().astype(np.float64)
    ranks = RowRanks(np.full(len(accuracy), np.nan), np.full(len(accuracy), np.nan))
    chosen = np.flatnonzero(usable & np.isfinite(accuracy))
    if not len(chosen):
        return ranks
    benchmark = _number_values(rows, _BENCHMARK)[chosen]
    network = _codes(rows.column("nn"))[chosen]
    values = accuracy[chosen]
    best = _last_of_each(np.lexsort((values, network, benchmark)), benchmark, network)  # each network's best accuracy
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
        # Numbers below and up to a value add up to twice its middle rank.
        ranks.percentiles[chosen[members]] = (below + up_to) / (2 * len(peers))
        ranks.weights[chosen[members]] = len(peers) / (len(peers) + HALF_FIELD)
    return ranks


def score_codes(rows: pa.Table, code_of_row: npt.NDArray[np.int64], ranks: RowRanks) -> dict[int, float]:
    """Return the score of each code, in (0, 1), from its rows that have a rank; a code without such rows has none.

    Args:
        code_of_row: the code of each row; negative for rows that do not count.
    """
    chosen = np.flatnonzero((code_of_row >= 0) & np.isfinite(ranks.percentiles))
    benchmark, dataset = (_number_values(rows, columns)[chosen] for columns in (_BENCHMARK, _DATASET))
    code, percentile, weight = code_of_row[chosen], ranks.percentiles[chosen], ranks.weights[chosen]
    best = _last_of_each(np.lexsort((percentile, benchmark, code)), benchmark, code)
    datasets = int(dataset.max(initial=0)) + 1
    pairs, means, weights = _average((code * datasets + dataset)[best], percentile[best], weight[best], np.maximum)
    codes, means, weights = _average(pairs // datasets, means, weights, np.add)
    scores = (weights * means + PRIOR / 2) / (weights + PRIOR)
    return dict(zip(codes.tolist(), scores.tolist(), strict=True))


def find_best_rows(corpus: LoadedRecords, shown: Mapping[int, int]) -> dict[int, int]:
    """Return the row of each code's highest accuracy on the data set (task, dataset, metric) that its shown row has.

    Of equal ones it is that of the fewest epochs. A code without an accuracy there is missing.

    Args:
        shown: code -> the row that represents it.
    """
    home = np.full(len(corpus.ids), -1)
    home[list(shown)] = list(shown.values())
    accuracy, epoch = (corpus.rows.column(name).to_numpy().astype(np.float64) for name in ("accuracy", "epoch"))
    usable = (corpus.code_of_row >= 0) & np.isfinite(accuracy)
    usable[list(corpus.problems)] = False
    dataset = _number_values(corpus.rows, _DATASET)
    rows = np.flatnonzero(usable)
    own = home[corpus.code_of_row[rows]]
    rows = rows[(own >= 0) & (dataset[rows] == dataset[own])]
    code = corpus.code_of_row[rows]
    best = rows[_last_of_each(np.lexsort((-np.nan_to_num(epoch[rows], nan=np.inf), accuracy[rows], code)), code)]
    return dict(zip(corpus.code_of_row[best].tolist(), best.tolist(), strict=True))


def find_off_scale(corpus: LoadedRecords) -> list[int]:
    """Return the rows with an accuracy outside 0 to 1 on data sets where nine in ten accuracies are inside."""
    accuracy = corpus.rows.column("accuracy").to_numpy().astype(np.float64)
    usable = (corpus.code_of_row >= 0) & np.isfinite(accuracy)
    usable[list(corpus.problems)] = False
    rows = np.flatnonzero(usable)
    dataset, outside = _number_values(corpus.rows, _DATASET)[rows], (accuracy[rows] < 0) | (accuracy[rows] > 1)
    share = np.bincount(dataset, outside) / np.maximum(np.bincount(dataset), 1)
    off: list[int] = rows[outside & (share[dataset] <= _OFF_SCALE)].tolist()
    return off


#: A larger share of accuracies outside 0 to 1 is another scale, such as percent.
_OFF_SCALE = 0.1


def _average(
    keys: npt.NDArray[np.int64], values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], combine: np.ufunc
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return each distinct key, the weighted mean of its values, and their combined weight."""
    distinct, group = np.unique(keys, return_inverse=True)
    # Sums are taken in order of the values, so that the order of the rows does not decide a last digit.
    order = np.lexsort((values, weights, group))
    group, values, weights = group[order], values[order], weights[order]
    means = np.bincount(group, weights * values) / np.bincount(group, weights)
    combined = np.zeros(len(distinct))
    combine.at(combined, group, weights)
    return distinct, means, combined


def _last_of_each(order: npt.NDArray[np.int64], *keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the last element of each run of equal keys in an order."""
    last = np.ones(len(order), bool)
    last[:-1] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    return order[last]


def _number_values(rows: pa.Table, columns: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return a dense number for each distinct combination of values."""
    numbers = [_codes(rows.column(name)) for name in columns]
    _, inverse = np.unique(np.stack(numbers, axis=1), axis=0, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64)


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    numbers: npt.NDArray[np.int64] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers
