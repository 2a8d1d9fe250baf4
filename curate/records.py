"""Rows become records: one for each distinct code, shown by its best row, ranked best-first."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from curate.corpus import Corpus
from curate.options import CurateOptions, matching_prefix, prefix_of
from curate.score import row_scores
from manifests.errors import UserError


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a corpus, by code number, and what kept rows out."""

    filtered: dict[int, str]  # row -> why an option left it out
    scores: npt.NDArray[np.float64]  # by row; NaN without an accuracy
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
    filtered = _filtered(corpus, options, names, usable)
    open_rows = usable.copy()
    open_rows[list(filtered)] = False
    if filtered and not open_rows.any():
        known = ", ".join(name for name, _ in Counter(prefix_of(names[row]) for row in filtered).most_common(5))
        raise UserError(f"no record is left: {next(iter(filtered.values()))}; the most frequent prefixes are {known}")
    shown = _shown_rows(corpus, options, names, scores, np.flatnonzero(open_rows))
    chosen_names = {code: names[row] for code, row in shown.items()}
    return Records(
        filtered=filtered,
        scores=scores,
        shown=shown,
        names=chosen_names,
        prefixes={code: prefix_of(name) for code, name in chosen_names.items()},
        families={code: corpus.features.family[code] for code in shown},
        order=_best_first(corpus, options, shown, chosen_names, scores),
    )


def _filtered(
    corpus: Corpus, options: CurateOptions, names: list[str], usable: npt.NDArray[np.bool_]
) -> dict[int, str]:
    filtered: dict[int, str] = {}
    if not options.include and not options.from_scratch:
        return filtered
    wanted = ", ".join(options.include)
    for row in np.flatnonzero(usable).tolist():
        if options.include and matching_prefix(names[row], options.include) is None:
            filtered[row] = f"name does not start with {wanted} (--include)"
        elif options.from_scratch and int(corpus.code_of_row[row]) in corpus.features.pretrained:
            line = corpus.features.pretrained[int(corpus.code_of_row[row])][0].line
            filtered[row] = f"loads trained weights, line {line} (--from-scratch)"
    return filtered


def _shown_rows(
    corpus: Corpus,
    options: CurateOptions,
    names: list[str],
    scores: npt.NDArray[np.float64],
    rows: npt.NDArray[np.int64],
) -> dict[int, int]:
    """For each code its best row: preferred prefix, score, then whatever tells rows apart (so order plays no part)."""
    best_score: dict[int, tuple[int, float]] = {}
    tied: dict[int, list[int]] = {}
    prefer = {name: _preference(name, options) for name in {names[row] for row in rows.tolist()}}
    for row in rows.tolist():
        code = int(corpus.code_of_row[row])
        key = (prefer[names[row]], -scores[row] if scores[row] == scores[row] else 0.0)
        known = best_score.get(code)
        if known is None or key < known:
            best_score[code], tied[code] = key, [row]
        elif key == known:
            tied[code].append(row)
    columns = ("task", "dataset", "metric", "epoch", "accuracy", "duration", "prm")
    shown = {}
    for code, candidates in tied.items():
        if len(candidates) > 1:
            details = corpus.rows.take(candidates).select(columns).to_pylist()
            order = sorted(
                range(len(candidates)),
                key=lambda i: (names[candidates[i]], [_sortable(details[i][name]) for name in columns], candidates[i]),
            )
            shown[code] = candidates[order[0]]
        else:
            shown[code] = candidates[0]
    return shown


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
        score = float(scores[shown[code]])
        known = -score if score == score else 1.0
        name = names[code]
        return _preference(name, options), code in corpus.features.pretrained, known, name, corpus.ids[code]

    return sorted(shown, key=key)
