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

import difflib
import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions, get_prefix, matching_prefix
from lemur_core.files.errors import UserError

#: Columns by whose value rows are chosen, each with an option of the same name.
BY_VALUE = ("task", "dataset", "metric")

_LISTED_VALUES = 12  # values that a message lists


def find_left_out(corpus: LoadedRecords, options: CurateOptions, usable: npt.NDArray[np.bool_]) -> dict[int, str]:
    """Return why an option leaves out a row, by row; the first such option in the order below counts.

    Args: usable: whether each row is usable; the others are ignored.
    Raises: UserError if no usable row has a requested value.
    """
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    reasons: dict[int, str] = {}
    for column in BY_VALUE:
        if wanted := getattr(options, column):
            reasons = _reject_by_value(corpus.rows.column(column), column, wanted, usable) | reasons
    if options.include:
        reason = f"name does not start with {', '.join(options.include)} (--include)"
        rows = (row for row in np.flatnonzero(usable).tolist() if matching_prefix(names[row], options.include) is None)
        reasons = dict.fromkeys(rows, reason) | reasons
    if options.from_scratch:
        loading = np.isin(corpus.code_of_row, np.fromiter(corpus.features.pretrained, np.int64)) & usable
        for row in np.flatnonzero(loading).tolist():
            line = corpus.features.pretrained[int(corpus.code_of_row[row])][0].line
            reasons.setdefault(row, f"loads trained weights, line {line} (--from-scratch)")
    return reasons


def _reject_by_value(
    values: pa.ChunkedArray, column: str, wanted: tuple[str, ...], usable: npt.NDArray[np.bool_]
) -> dict[int, str]:
    counted = pc.value_counts(values.filter(pa.array(usable))).to_pylist()
    counts = Counter({item["values"]: item["counts"] for item in counted if item["values"] is not None})
    for value in wanted:
        if value not in counts:
            raise UserError(f"--{column} {value}: no row has it; {_suggest(value, counts)}")
    chosen = pc.is_in(values, pa.array(wanted, values.type)).combine_chunks().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(usable & ~chosen)
    stated = values.take(pa.array(rows, pa.int64())).to_pylist()
    reasons = {value: f"{column} is {value or 'not stated'} (--{column})" for value in {*stated}}
    return {row: reasons[value] for row, value in zip(rows.tolist(), stated, strict=True)}


def _suggest(value: str, counts: "Counter[str]") -> str:
    """Suggest the values nearest to one, then the most frequent ones."""
    plain = {known.casefold(): known for known in sorted(counts)}
    near = [plain[text] for text in difflib.get_close_matches(value.casefold(), plain, n=3)]
    most = [known for known, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_LISTED_VALUES]]
    more = f" and {len(counts) - _LISTED_VALUES} others" if len(counts) > _LISTED_VALUES else ""
    nearest = f"near: {', '.join(near)}; " if near else ""
    return f"{nearest}there are {', '.join(most) or 'none'}{more}"


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a corpus, by code number, and the filtered rows."""

    filtered: dict[int, str]  # row -> why an option left it out
    scores: dict[int, float]  # code -> score, if it has a result
    network_rows: dict[tuple[str, int], int]  # (name, code) -> the representative row of this network
    representatives: dict[int, int]  # code -> its representative row
    names: dict[int, str]  # code -> the name of its representative row
    prefixes: dict[int, str]
    families: dict[int, str]
    order: list[int]  # codes, best first
    rows: dict[int, int]  # code -> its best row, also of codes that an option left out

    @property
    def rank(self) -> dict[int, int]:
        """The rank of each code in the order."""
        return {code_index: index for index, code_index in enumerate(self.order)}


def build_records(corpus: LoadedRecords, options: CurateOptions, published: Container[int] = ()) -> Records:
    """Build the records of all usable rows that the options include. Args: published: codes that come first."""
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    usable = corpus.code_of_row >= 0
    usable[list(corpus.problems)] = False
    ranks = rank_rows(corpus.rows, usable)
    filtered = find_left_out(corpus, options, usable)
    open_rows = usable.copy()
    open_rows[list(filtered)] = False
    scores = score_codes(corpus.rows, np.where(open_rows, corpus.code_of_row, -1), ranks)
    speaking = _network_rows(corpus, names, ranks.shrunk_percentiles, np.flatnonzero(open_rows))
    shown = _representative_rows(speaking, ranks.shrunk_percentiles, options)
    chosen_names = {code_index: names[row] for code_index, row in shown.items()}
    closed = np.flatnonzero(usable & ~np.isin(corpus.code_of_row, np.fromiter(shown, np.int64)))
    left_out = _representative_rows(
        _network_rows(corpus, names, ranks.shrunk_percentiles, closed), ranks.shrunk_percentiles, options
    )
    return Records(
        filtered=filtered,
        scores=scores,
        network_rows=speaking,
        representatives=shown,
        names=chosen_names,
        prefixes={code_index: get_prefix(name) for code_index, name in chosen_names.items()},
        families={code_index: corpus.features.family[code_index] for code_index in shown},
        order=_rank_codes(corpus, options, shown, chosen_names, scores, published),
        rows=left_out | shown,
    )


def leave_out(records: Records, corpus: LoadedRecords, reasons: Mapping[int, str]) -> Records:
    """Remove some codes from the records; each of their rows is filtered for the reason of its code."""
    open_rows = np.flatnonzero(np.isin(corpus.code_of_row, np.fromiter(reasons, np.int64)))
    filtered = {row: reasons[int(corpus.code_of_row[row])] for row in open_rows.tolist() if row not in corpus.problems}
    return replace(
        records,
        filtered=filtered | records.filtered,
        representatives={
            code_index: row for code_index, row in records.representatives.items() if code_index not in reasons
        },
        order=[code_index for code_index in records.order if code_index not in reasons],
    )


def _network_rows(
    corpus: LoadedRecords, names: list[str], percentiles: npt.NDArray[np.float64], rows: npt.NDArray[np.int64]
) -> dict[tuple[str, int], int]:
    """Return the best row of each network (name and code): by percentile, then by content, never by order."""
    best: dict[tuple[str, int], float] = {}
    tied: dict[tuple[str, int], list[int]] = {}
    for row, code_index in zip(rows.tolist(), corpus.code_of_row[rows].tolist(), strict=True):
        network = names[row], code_index
        percentile = _sort_key(percentiles[row])
        known = best.get(network)
        if known is None or percentile < known:
            best[network], tied[network] = percentile, [row]
        elif percentile == known:
            tied[network].append(row)
    columns = ("task", "dataset", "metric", "epoch", "accuracy", "duration", "prm")
    speaking = {}
    for network, candidates in tied.items():
        speaking[network] = candidates[0]
        if len(candidates) > 1:
            details = corpus.rows.take(candidates).select(columns).to_pylist()
            keys = [[_sortable(detail[name]) for name in columns] for detail in details]
            speaking[network] = min(zip(keys, candidates, strict=True))[1]
    return speaking


def _representative_rows(
    speaking: dict[tuple[str, int], int], percentiles: npt.NDArray[np.float64], options: CurateOptions
) -> dict[int, int]:
    """Return the row of each code's best network: by preferred prefix, percentile, name."""
    best: dict[int, tuple[int, float, str]] = {}
    for (name, code_index), row in speaking.items():
        key = (_preference(name, options), _sort_key(percentiles[row]), name)
        if code_index not in best or key < best[code_index]:
            best[code_index] = key
    return {code_index: speaking[name, code_index] for code_index, (_, _, name) in best.items()}


def _sort_key(score: float) -> float:
    """Return a score or percentile as a sort key: higher first, unknown last."""
    return 1.0 if math.isnan(score) else -float(score)


def _sortable(value: object) -> tuple[bool, object]:
    return value is None, 0 if value is None else value


def _preference(name: str, options: CurateOptions) -> int:
    index = matching_prefix(name, options.prefer)
    return len(options.prefer) if index is None else index


def _rank_codes(
    corpus: LoadedRecords,
    options: CurateOptions,
    shown: dict[int, int],
    names: dict[int, str],
    scores: Mapping[int, float],
    published: Container[int],
) -> list[int]:
    """Order codes by publication, preferred prefix, trained from scratch first, score, name, id: a total order."""

    def key(code_index: int) -> tuple[bool, int, bool, float, str, str]:
        name = names[code_index]
        pretrained = code_index in corpus.features.pretrained
        score = _sort_key(scores.get(code_index, math.nan))
        return code_index not in published, _preference(name, options), pretrained, score, name, corpus.ids[code_index]

    return sorted(shown, key=key)


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

    Args: code_of_row: the code of each row; negative for rows that do not count.
    """
    chosen = np.flatnonzero((code_of_row >= 0) & np.isfinite(ranks.percentiles))
    benchmark, dataset = (_number_values(rows, columns)[chosen] for columns in (_BENCHMARK, _DATASET))
    code_index, percentile, weight = code_of_row[chosen], ranks.percentiles[chosen], ranks.weights[chosen]
    best = _last_of_each(np.lexsort((percentile, benchmark, code_index)), benchmark, code_index)
    datasets = int(dataset.max(initial=0)) + 1
    pairs, means, weights = _average(
        (code_index * datasets + dataset)[best], percentile[best], weight[best], np.maximum
    )
    codes, means, weights = _average(pairs // datasets, means, weights, np.add)
    scores = (weights * means + PRIOR / 2) / (weights + PRIOR)
    return dict(zip(codes.tolist(), scores.tolist(), strict=True))


def find_best_rows(corpus: LoadedRecords, shown: Mapping[int, int]) -> dict[int, int]:
    """Return the row of each code's highest accuracy on the data set (task, dataset, metric) that its shown row has.

    Of equal ones it is that of the fewest epochs. A code without an accuracy there is missing.

    Args: shown: code -> the row that represents it.
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
    code_index = corpus.code_of_row[rows]
    best = rows[
        _last_of_each(np.lexsort((-np.nan_to_num(epoch[rows], nan=np.inf), accuracy[rows], code_index)), code_index)
    ]
    return dict(zip(corpus.code_of_row[best].tolist(), best.tolist(), strict=True))


def find_off_scale(corpus: LoadedRecords) -> list[int]:
    """Return the rows with an accuracy outside 0 to 1 on data sets where most accuracies are inside."""
    accuracy = corpus.rows.column("accuracy").to_numpy().astype(np.float64)
    usable = (corpus.code_of_row >= 0) & np.isfinite(accuracy)
    usable[list(corpus.problems)] = False
    rows = np.flatnonzero(usable)
    dataset, outside = _number_values(corpus.rows, _DATASET)[rows], (accuracy[rows] < 0) | (accuracy[rows] > 1)
    share = np.bincount(dataset, outside) / np.maximum(np.bincount(dataset), 1)
    off: list[int] = rows[outside & (share[dataset] < _OFF_SCALE)].tolist()
    return off


#: A larger share of accuracies outside 0 to 1 is another scale, such as percent.
_OFF_SCALE = 0.5


def describe_off_scale(corpus: LoadedRecords) -> list[str]:
    """Return a note on the accuracies outside 0 to 1 by row, if there are any."""
    off = [f"row {row}: accuracy {corpus.rows['accuracy'][row].as_py():g}" for row in find_off_scale(corpus)]
    return [f"outside 0 to 1: {list_first(off)}"] if off else []


def list_first(items: Sequence[str]) -> str:
    """Return the first items in one line, and how many more there are."""
    more = f"; and {len(items) - _LISTED_VALUES:,} more" if len(items) > _LISTED_VALUES else ""
    return "; ".join(items[:_LISTED_VALUES]) + more


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
