"""Turn rows, but those that the options leave out, into records: one per distinct code, ranked best-first by score."""

import difflib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions, get_prefix, matching_prefix
from curate.model.scores import rank_rows, score_codes
from lemur_core.files.errors import UserError

#: Columns by whose value rows are chosen, each with an option of the same name.
BY_VALUE = ("task", "dataset", "metric")

_LISTED_VALUES = 12  # values that a message lists


def find_left_out(corpus: LoadedRecords, options: CurateOptions, usable: npt.NDArray[np.bool_]) -> dict[int, str]:
    """Return why an option leaves out a row, by row; the first such option in the order below counts.

    `include` counts only in profile strict: profile nn-dup applies it as nn-dup does.

    Args:
        usable: whether each row is usable; the others are ignored.

    Raises: UserError if no usable row has a requested value.
    """
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    reasons: dict[int, str] = {}
    for column in BY_VALUE:
        if wanted := getattr(options, column):
            reasons = _reject_by_value(corpus.rows.column(column), column, wanted, usable) | reasons
    prefixes = options.nn_prefixes, options.include if options.profile == "strict" else ()
    for chosen, option in zip(prefixes, ("nn_prefixes", "--include"), strict=True):
        if chosen:
            reason = f"name does not start with {', '.join(chosen)} ({option})"
            rows = (row for row in np.flatnonzero(usable).tolist() if matching_prefix(names[row], chosen) is None)
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

    @property
    def rank(self) -> dict[int, int]:
        """The rank of each code in the order."""
        return {code: index for index, code in enumerate(self.order)}


def build_records(corpus: LoadedRecords, options: CurateOptions) -> Records:
    """Build the records of all usable rows that the options include."""
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
    chosen_names = {code: names[row] for code, row in shown.items()}
    return Records(
        filtered=filtered,
        scores=scores,
        network_rows=speaking,
        representatives=shown,
        names=chosen_names,
        prefixes={code: get_prefix(name) for code, name in chosen_names.items()},
        families={code: corpus.features.family[code] for code in shown},
        order=_rank_codes(corpus, options, shown, chosen_names, scores),
    )


def leave_out(records: Records, corpus: LoadedRecords, reasons: Mapping[int, str]) -> Records:
    """Remove some codes from the records; each of their rows is filtered for the reason of its code."""
    open_rows = np.flatnonzero(np.isin(corpus.code_of_row, np.fromiter(reasons, np.int64)))
    filtered = {row: reasons[int(corpus.code_of_row[row])] for row in open_rows.tolist() if row not in corpus.problems}
    return replace(
        records,
        filtered=filtered | records.filtered,
        representatives={code: row for code, row in records.representatives.items() if code not in reasons},
        order=[code for code in records.order if code not in reasons],
    )


def _network_rows(
    corpus: LoadedRecords, names: list[str], percentiles: npt.NDArray[np.float64], rows: npt.NDArray[np.int64]
) -> dict[tuple[str, int], int]:
    """Return the best row of each network (name and code): by percentile, then by content, never by order."""
    best: dict[tuple[str, int], float] = {}
    tied: dict[tuple[str, int], list[int]] = {}
    for row, code in zip(rows.tolist(), corpus.code_of_row[rows].tolist(), strict=True):
        network = names[row], code
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
    for (name, code), row in speaking.items():
        key = (_preference(name, options), _sort_key(percentiles[row]), name)
        if code not in best or key < best[code]:
            best[code] = key
    return {code: speaking[name, code] for code, (_, _, name) in best.items()}


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
) -> list[int]:
    """Order codes by preferred prefix, trained from scratch first, score, name, id: a total order."""

    def key(code: int) -> tuple[int, bool, float, str, str]:
        name = names[code]
        pretrained = code in corpus.features.pretrained
        return _preference(name, options), pretrained, _sort_key(scores.get(code, math.nan)), name, corpus.ids[code]

    return sorted(shown, key=key)
