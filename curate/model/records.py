"""Rows become records: one for each distinct code, shown by its best row, ranked best-first by score.

The score of a row: the percentile of its accuracy among the networks evaluated on the same benchmark.

A benchmark is one task, dataset, metric and epoch; accuracies of different ones are never compared raw. Each network
enters with its best accuracy there. The percentile is (networks below + half of those equal) / networks, so that the
only network of a benchmark gets 0.5 and no benchmark's winner gets more than the size of its field warrants.

Source: Hazen's plotting position; Hyndman and Fan 1996, "Sample quantiles in statistical packages".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.model.corpus import Corpus
from curate.model.filters import left_out
from curate.model.options import CurateOptions, matching_prefix, prefix_of


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


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a corpus, by code number, and what kept rows out."""

    filtered: dict[int, str]  # row -> why an option left it out
    scores: npt.NDArray[np.float64]  # by row; NaN without an accuracy
    speaking: dict[tuple[str, int], int]  # (name, code) -> the row that speaks for this network
    shown: dict[int, int]  # code -> the row that shows it
    names: dict[int, str]  # code -> its shown name
    prefixes: dict[int, str]
    families: dict[int, str]
    order: list[int]  # codes, best first

    @property
    def rank(self) -> dict[int, int]:
        """The place of each code in the order."""
        return {code: place for place, code in enumerate(self.order)}


def build_records(corpus: Corpus, options: CurateOptions) -> Records:
    """The records of all usable rows that the options let through."""
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    usable = corpus.code_of_row >= 0
    usable[list(corpus.problems)] = False
    scores = row_scores(corpus.rows, usable)
    filtered = left_out(corpus, options, usable)
    open_rows = usable.copy()
    open_rows[list(filtered)] = False
    speaking = _speaking_rows(corpus, names, scores, np.flatnonzero(open_rows))
    shown = _shown_rows(speaking, scores, options)
    chosen_names = {code: names[row] for code, row in shown.items()}
    return Records(
        filtered=filtered,
        scores=scores,
        speaking=speaking,
        shown=shown,
        names=chosen_names,
        prefixes={code: prefix_of(name) for code, name in chosen_names.items()},
        families={code: corpus.features.family[code] for code in shown},
        order=_best_first(corpus, options, shown, chosen_names, scores),
    )


def leave_out(records: Records, corpus: Corpus, reasons: Mapping[int, str]) -> Records:
    """The records without some codes; each row of theirs is filtered for the reason of its code."""
    open_rows = np.flatnonzero(np.isin(corpus.code_of_row, np.fromiter(reasons, np.int64)))
    filtered = {row: reasons[int(corpus.code_of_row[row])] for row in open_rows.tolist() if row not in corpus.problems}
    return replace(
        records,
        filtered=filtered | records.filtered,
        shown={code: row for code, row in records.shown.items() if code not in reasons},
        order=[code for code in records.order if code not in reasons],
    )


def _speaking_rows(
    corpus: Corpus, names: list[str], scores: npt.NDArray[np.float64], rows: npt.NDArray[np.int64]
) -> dict[tuple[str, int], int]:
    """For each network (name and code) its best row: by score, then by whatever tells rows apart, never by order."""
    best_score: dict[tuple[str, int], float] = {}
    tied: dict[tuple[str, int], list[int]] = {}
    for row, code in zip(rows.tolist(), corpus.code_of_row[rows].tolist(), strict=True):
        network = names[row], code
        score = _ranked(scores[row])
        known = best_score.get(network)
        if known is None or score < known:
            best_score[network], tied[network] = score, [row]
        elif score == known:
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


def _shown_rows(
    speaking: dict[tuple[str, int], int], scores: npt.NDArray[np.float64], options: CurateOptions
) -> dict[int, int]:
    """For each code the row of its best network: preferred prefix, score, name."""
    best: dict[int, tuple[int, float, str]] = {}
    for (name, code), row in speaking.items():
        key = (_preference(name, options), _ranked(scores[row]), name)
        if code not in best or key < best[code]:
            best[code] = key
    return {code: speaking[name, code] for code, (_, _, name) in best.items()}


def _ranked(score: float) -> float:
    """A score as a sort key: higher first, unknown last."""
    return 1.0 if math.isnan(score) else -float(score)


def _sortable(value: object) -> tuple[bool, object]:
    return value is None, 0 if value is None else value


def _preference(name: str, options: CurateOptions) -> int:
    place = matching_prefix(name, options.prefer)
    return len(options.prefer) if place is None else place


def _best_first(
    corpus: Corpus,
    options: CurateOptions,
    shown: dict[int, int],
    names: dict[int, str],
    scores: npt.NDArray[np.float64],
) -> list[int]:
    """Codes by preferred prefix, trained from scratch first, score, name, id: a total order."""

    def key(code: int) -> tuple[int, bool, float, str, str]:
        name = names[code]
        pretrained = code in corpus.features.pretrained
        return _preference(name, options), pretrained, _ranked(scores[shown[code]]), name, corpus.ids[code]

    return sorted(shown, key=key)
