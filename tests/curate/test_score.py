"""The score of a row, worked out by hand."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate.model.records import row_scores
from curate.sources.rows import ROW_SCHEMA


def scores(rows: list[tuple[Any, ...]], usable: list[bool] | None = None) -> list[float | None]:
    """Scores of (nn, dataset, epoch, accuracy) rows."""
    table = pa.Table.from_pylist(
        [{"nn": nn, "task": "t", "dataset": d, "metric": "acc", "epoch": e, "accuracy": a} for nn, d, e, a in rows],
        schema=ROW_SCHEMA,
    )
    found = row_scores(table, np.array(usable or [True] * len(rows)))
    return [None if np.isnan(value) else round(float(value), 6) for value in found]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("a", "c", 1, 0.5)], [0.5]),
        ([("a", "c", 1, 0.5), ("b", "c", 1, 0.6)], [0.25, 0.75]),
        (
            [("a", "c", 1, 0.1), ("b", "c", 1, 0.2), ("c", "c", 1, 0.3), ("d", "c", 1, 0.4)],
            [0.125, 0.375, 0.625, 0.875],
        ),
        # ties share the middle
        ([("a", "c", 1, 0.5), ("b", "c", 1, 0.5)], [0.5, 0.5]),
        ([("a", "c", 1, 0.1), ("b", "c", 1, 0.5), ("c", "c", 1, 0.5)], [0.166667, 0.666667, 0.666667]),
        # a network enters its benchmark once, with its best accuracy; its other rows are placed in the same field
        ([("a", "c", 1, 0.9), ("a", "c", 1, 0.1), ("b", "c", 1, 0.5)], [0.75, 0.0, 0.25]),
        ([("a", "c", 1, 0.9), ("a", "c", 1, 0.9), ("b", "c", 1, 0.5)], [0.75, 0.75, 0.25]),
        # other benchmarks are other fields
        ([("a", "c", 1, 0.2), ("a", "m", 1, 0.99), ("b", "c", 1, 0.1), ("b", "m", 1, 1.0)], [0.75, 0.25, 0.25, 0.75]),
        ([("a", "c", 1, 0.2), ("b", "c", 5, 0.9)], [0.5, 0.5]),
        ([("a", "c", None, 0.2), ("b", "c", None, 0.9), ("c", "c", 1, 0.1)], [0.25, 0.75, 0.5]),
        ([("a", None, 1, 0.2), ("b", None, 1, 0.9), ("c", "None", 1, 0.1)], [0.25, 0.75, 0.5]),
        # without an accuracy there is no score, and no place in the field
        ([("a", "c", 1, None), ("b", "c", 1, 0.5)], [None, 0.5]),
        ([("a", "c", 1, None)], [None]),
        ([("a", "c", 1, float("nan")), ("b", "c", 1, float("inf")), ("c", "c", 1, 0.1)], [None, None, 0.5]),
        ([("a", "c", 1, -5.0), ("b", "c", 1, 1e300)], [0.25, 0.75]),  # any metric
    ],
)
def test_by_hand(rows: list[tuple[Any, ...]], expected: list[float | None]) -> None:
    assert scores(rows) == expected
    assert scores(rows[::-1]) == expected[::-1]


def test_unusable_rows_have_no_place() -> None:
    rows = [("a", "c", 1, 0.1), ("b", "c", 1, 0.9), ("c", "c", 1, 0.5)]
    assert scores(rows, [True, False, True]) == [0.25, None, 0.75]
    assert scores(rows, [False, False, False]) == [None, None, None]


def test_chunked_columns() -> None:
    rows = [{"nn": f"n{i}", "dataset": "c", "accuracy": i / 10} for i in range(10)]
    whole = pa.Table.from_pylist(rows, schema=ROW_SCHEMA)
    parts = pa.concat_tables([whole.slice(i, 3) for i in range(0, 10, 3)])
    usable = np.ones(10, bool)
    assert row_scores(parts, usable).tolist() == row_scores(whole, usable).tolist()
    assert row_scores(parts, usable).tolist() == [(i + 0.5) / 10 for i in range(10)]
