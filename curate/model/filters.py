"""The rows that the options leave out, each with its reason; a value that no row has is an error."""

import difflib
from collections import Counter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions, matching_prefix
from lemur_core.files.errors import UserError

#: Columns by whose value rows are chosen, each with an option of the same name.
BY_VALUE = ("task", "dataset", "metric")

_LISTED_VALUES = 12  # values that a message lists


def find_left_out(corpus: LoadedRecords, options: CurateOptions, usable: npt.NDArray[np.bool_]) -> dict[int, str]:
    """Return why an option leaves out a row, by row; the first such option in the order below counts.

    `include` counts only in profile strict: profile nn-dup applies it as nn-dup does.

    Args:
        usable: of each row; unusable rows are ignored.

    Raises: UserError if no usable row has a requested value.
    """
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    reasons: dict[int, str] = {}
    for column in BY_VALUE:
        if wanted := getattr(options, column):
            reasons = _by_value(corpus.rows.column(column), column, wanted, usable) | reasons
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


def _by_value(
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


def _suggest(value: str, there: "Counter[str]") -> str:
    """Suggest the values nearest to one, then the most frequent ones."""
    plain = {known.casefold(): known for known in sorted(there)}
    near = [plain[text] for text in difflib.get_close_matches(value.casefold(), plain, n=3)]
    most = [known for known, _ in sorted(there.items(), key=lambda item: (-item[1], item[0]))[:_LISTED_VALUES]]
    more = f" and {len(there) - _LISTED_VALUES} others" if len(there) > _LISTED_VALUES else ""
    nearest = f"near: {', '.join(near)}; " if near else ""
    return f"{nearest}there are {', '.join(most) or 'none'}{more}"
