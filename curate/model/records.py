"""Turn rows, but those that the options leave out, into records: one per distinct code, ranked best-first by score.

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

from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions, matching_prefix
from lemur_core.files.errors import missing_name

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Columns by whose value rows are chosen, each with an option of the same name.
BY_VALUE = ("task", "dataset", "metric")

_LISTED_VALUES = 12  # values that a message lists


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a corpus, by code index, and the filtered rows."""

    filtered: dict[int, str]  # row -> why an option left it out
    scores: dict[int, float]  # of codes that have a result
    network_rows: dict[tuple[str, int], int]  # network (name, code index) -> its best row
    representatives: dict[int, int]  # the best row of the code's best network
    names: dict[int, str]  # in that row
    order: list[int]  # code indices, best first
    rows: dict[int, int]  # as `representatives`, also of codes that an option left out


def build_records(corpus: LoadedRecords, options: CurateOptions, published: Container[int] = ()) -> Records:
    """Build the records of all usable rows that the options include. Args: published: codes that come first."""
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    usable = _find_usable(corpus)
    filtered = find_left_out(corpus, options, usable, names)
    ranks = rank_rows(corpus.rows, usable)
    included = usable.copy()
    included[list(filtered)] = False
    network_rows, representatives = _choose_rows(corpus, names, ranks, np.flatnonzero(included), options)
    left_out = usable & ~np.isin(corpus.code_of_row, np.fromiter(representatives, np.int64))
    scores = score_codes(corpus.rows, np.where(included, corpus.code_of_row, -1), ranks)
    shown = {code_index: names[row] for code_index, row in representatives.items()}

    def key(code_index: int) -> tuple[object, ...]:
        """Rank what was published first, then by preferred prefix, without trained weights, score, name, id."""
        return (
            code_index not in published,
            _preference(shown[code_index], options),
            code_index in corpus.features.pretrained,
            -scores.get(code_index, -1.0),
            shown[code_index],
            corpus.ids[code_index],
        )

    return Records(
        filtered=filtered,
        scores=scores,
        network_rows=network_rows,
        representatives=representatives,
        names=shown,
        order=sorted(representatives, key=key),
        rows=_choose_rows(corpus, names, ranks, np.flatnonzero(left_out), options)[1] | representatives,
    )


def leave_out(records: Records, corpus: LoadedRecords, reasons: Mapping[int, str]) -> Records:
    """Remove some codes from the records; each of their rows is filtered for the reason of its code."""
    rows = np.flatnonzero(np.isin(corpus.code_of_row, np.fromiter(reasons, np.int64))).tolist()
    filtered = {row: reasons[int(corpus.code_of_row[row])] for row in rows if row not in corpus.problems}
    left = {code_index: row for code_index, row in records.representatives.items() if code_index not in reasons}
    order = [code_index for code_index in records.order if code_index in left]
    return replace(records, filtered=filtered | records.filtered, representatives=left, order=order)


def _find_usable(corpus: LoadedRecords) -> Flags:
    usable = corpus.code_of_row >= 0
    usable[list(corpus.problems)] = False
    return usable


def find_left_out(corpus: LoadedRecords, options: CurateOptions, usable: Flags, names: Sequence[str]) -> dict[int, str]:
    """Return why an option leaves out a row, by row; the first such option in the order below counts.

    Raises: UserError if no usable row has a requested value.
    """
    reasons: dict[int, str] = {}
    if options.include:
        reason = f"name does not start with {', '.join(options.include)} (--include)"
        rows = np.flatnonzero(usable).tolist()
        reasons |= {row: reason for row in rows if matching_prefix(names[row], options.include) is None}
    for column in reversed(BY_VALUE):
        if wanted := getattr(options, column):
            reasons |= _reject_by_value(corpus.rows.column(column), column, wanted, usable)
    return reasons


def _reject_by_value(values: pa.ChunkedArray, column: str, wanted: tuple[str, ...], usable: Flags) -> dict[int, str]:
    present = values.filter(pa.array(usable)).drop_null()
    counts = Counter({item["values"]: item["counts"] for item in pc.value_counts(present).to_pylist()})
    for value in wanted:
        if value not in counts:
            most = sorted(counts, key=lambda known: (-counts[known], known))
            raise missing_name(f"--{column} {value}: no row has it", value, most)
    chosen = pc.is_in(values, pa.array(wanted, values.type)).combine_chunks().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(usable & ~chosen)
    stated = values.take(pa.array(rows, pa.int64())).to_pylist()
    return {
        row: f"{column} is {value or 'not stated'} (--{column})"
        for row, value in zip(rows.tolist(), stated, strict=True)
    }


_CONTENT = ("task", "dataset", "metric", "epoch", "accuracy", "duration", "prm")


def _choose_rows(
    corpus: LoadedRecords, names: Sequence[str], ranks: "RowRanks", rows: Ints, options: CurateOptions
) -> tuple[dict[tuple[str, int], int], dict[int, int]]:
    """Return the best of these rows for each network (name, code index), and for each code the row of its best one.

    Rows are compared by percentile, then by content, never by their order; networks by preferred prefix, percentile,
    name.
    """
    worth = np.nan_to_num(-ranks.shrunk_percentiles, nan=1.0).tolist()  # the least first; those without a result last
    tied: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row, code_index in zip(rows.tolist(), corpus.code_of_row[rows].tolist(), strict=True):
        candidates = tied[names[row], code_index]
        if candidates and worth[row] < worth[candidates[0]]:
            candidates.clear()
        if not candidates or worth[row] == worth[candidates[0]]:
            candidates.append(row)

    def by_content(candidates: list[int]) -> int:
        contents = corpus.rows.take(candidates).select(_CONTENT).to_pylist()
        keys = [[(value is None, value or 0) for value in content.values()] for content in contents]
        return min(zip(keys, candidates, strict=True))[1]

    network_rows = {
        network: candidates[0] if len(candidates) == 1 else by_content(candidates)
        for network, candidates in tied.items()
    }
    best: dict[int, tuple[int, float, str]] = {}
    for (name, code_index), row in network_rows.items():
        key = (_preference(name, options), worth[row], name)
        best[code_index] = min(best.get(code_index, key), key)
    return network_rows, {code_index: network_rows[name, code_index] for code_index, (*_, name) in best.items()}


def _preference(name: str, options: CurateOptions) -> int:
    place = matching_prefix(name, options.prefer)
    return len(options.prefer) if place is None else place


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

    percentiles: Floats  # in (0, 1)
    weights: Floats  # in (0, 1), by the number of networks in the field

    @property
    def shrunk_percentiles(self) -> Floats:
        """The percentiles drawn to the middle by their weights: of two equal ones that in the larger field counts."""
        return 0.5 + self.weights * (self.percentiles - 0.5)


def rank_rows(rows: pa.Table, usable: Flags) -> RowRanks:
    """Rank all usable rows with an accuracy on their benchmarks."""
    accuracy = _read_floats(rows, "accuracy")
    ranks = RowRanks(np.full(len(accuracy), np.nan), np.full(len(accuracy), np.nan))
    chosen = np.flatnonzero(usable & np.isfinite(accuracy))
    if not len(chosen):
        return ranks
    benchmark, network = _number_values(rows, _BENCHMARK)[chosen], _number_values(rows, ("nn",))[chosen]
    levels, level = np.unique(accuracy[chosen], return_inverse=True)
    place = benchmark * len(levels) + level  # ordered by benchmark, then by accuracy
    best = _last_of_each(np.lexsort((level, network, benchmark)), benchmark, network)  # each network's best accuracy
    field = np.sort(place[best])
    start, end = (np.searchsorted(field, (benchmark + step) * len(levels)) for step in (0, 1))
    below, up_to = (np.searchsorted(field, place, side) - start for side in ("left", "right"))
    ranks.percentiles[chosen] = (below + up_to) / (2 * (end - start))  # these add up to twice the middle rank
    ranks.weights[chosen] = (end - start) / (end - start + HALF_FIELD)
    return ranks


def score_codes(rows: pa.Table, code_of_row: Ints, ranks: RowRanks) -> dict[int, float]:
    """Return the score of each code, in (0, 1), from its rows that have a rank; a code without such rows has none.

    Args: code_of_row: the code index of each row; negative for rows that do not count.
    """
    chosen = np.flatnonzero((code_of_row >= 0) & np.isfinite(ranks.percentiles))
    benchmark, dataset = (_number_values(rows, columns)[chosen] for columns in (_BENCHMARK, _DATASET))
    code_index, percentile, weight = code_of_row[chosen], ranks.percentiles[chosen], ranks.weights[chosen]
    best = _last_of_each(np.lexsort((percentile, benchmark, code_index)), benchmark, code_index)
    datasets = int(dataset.max(initial=0)) + 1
    pairs, means, weights = _average(
        (code_index * datasets + dataset)[best], percentile[best], weight[best], np.maximum
    )
    code_indices, means, weights = _average(pairs // datasets, means, weights, np.add)
    scores = (weights * means + PRIOR / 2) / (weights + PRIOR)
    return dict(zip(code_indices.tolist(), scores.tolist(), strict=True))


def find_best_rows(corpus: LoadedRecords, shown: Mapping[int, int]) -> dict[int, int]:
    """Return the row of each code's highest accuracy on the data set (task, dataset, metric) that its shown row has.

    Of equal ones it is that of the fewest epochs. A code without an accuracy there is missing.

    Args: shown: the row that represents each code.
    """
    home = np.full(len(corpus.ids), -1)
    home[list(shown)] = list(shown.values())
    accuracy, epoch = _read_floats(corpus.rows, "accuracy"), _read_floats(corpus.rows, "epoch")
    dataset = _number_values(corpus.rows, _DATASET)
    rows = np.flatnonzero(_find_usable(corpus) & np.isfinite(accuracy))
    own = home[corpus.code_of_row[rows]]
    rows = rows[(own >= 0) & (dataset[rows] == dataset[own])]
    code_index = corpus.code_of_row[rows]
    order = np.lexsort((-np.nan_to_num(epoch[rows], nan=np.inf), accuracy[rows], code_index))
    best = rows[_last_of_each(order, code_index)]
    return dict(zip(corpus.code_of_row[best].tolist(), best.tolist(), strict=True))


#: A larger share of accuracies outside 0 to 1 is another scale, such as percent.
_OFF_SCALE = 0.5


def find_off_scale(corpus: LoadedRecords) -> list[int]:
    """Return the rows with an accuracy outside 0 to 1 on data sets where most accuracies are inside."""
    accuracy = _read_floats(corpus.rows, "accuracy")
    rows = np.flatnonzero(_find_usable(corpus) & np.isfinite(accuracy))
    dataset, outside = _number_values(corpus.rows, _DATASET)[rows], (accuracy[rows] < 0) | (accuracy[rows] > 1)
    share = np.bincount(dataset, outside) / np.maximum(np.bincount(dataset), 1)
    off: list[int] = rows[outside & (share[dataset] < _OFF_SCALE)].tolist()
    return off


def describe_off_scale(corpus: LoadedRecords) -> list[str]:
    """Return a note on the accuracies outside 0 to 1 by row, if there are any."""
    off = [f"row {row}: accuracy {corpus.rows['accuracy'][row].as_py():g}" for row in find_off_scale(corpus)]
    return [f"outside 0 to 1: {list_first(off)}"] if off else []


def list_first(items: Sequence[str]) -> str:
    """Return the first items in one line, and how many more there are."""
    more = f"; and {len(items) - _LISTED_VALUES:,} more" if len(items) > _LISTED_VALUES else ""
    return "; ".join(items[:_LISTED_VALUES]) + more


def _average(keys: Ints, values: Floats, weights: Floats, combine: np.ufunc) -> tuple[Ints, Floats, Floats]:
    """Return each distinct key, the weighted mean of its values, and their combined weight."""
    distinct, group = np.unique(keys, return_inverse=True)
    # Sums are taken in order of the values, so that the order of the rows does not decide a last digit.
    order = np.lexsort((values, weights, group))
    group, values, weights = group[order], values[order], weights[order]
    means = np.bincount(group, weights * values) / np.bincount(group, weights)
    combined = np.zeros(len(distinct))
    combine.at(combined, group, weights)
    return distinct, means, combined


def _last_of_each(order: Ints, *keys: Ints) -> Ints:
    """Return the last element of each run of equal keys in an order."""
    last = np.ones(len(order), bool)
    last[:-1] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    return order[last]


def _number_values(rows: pa.Table, columns: Sequence[str]) -> Ints:
    """Return a dense number for each distinct combination of values."""
    encoded = (
        pc.dictionary_encode(rows.column(name).combine_chunks(), null_encoding="encode").indices for name in columns
    )
    numbers = np.stack([indices.to_numpy(zero_copy_only=False) for indices in encoded], axis=1)
    return np.unique(numbers, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _read_floats(rows: pa.Table, column: str) -> Floats:
    values: Floats = rows.column(column).to_numpy().astype(np.float64)
    return values
