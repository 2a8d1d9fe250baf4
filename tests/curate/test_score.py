"""Percentiles and scores, worked out by hand and by a plain second program; best results; values off the scale."""

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.kinds import verify
from curate.model.corpus import code_features
from curate.model.options import CurateOptions
from curate.model.pretrained import find_pretrained
from curate.model.records import find_best_rows, find_off_scale, rank_rows
from curate.run.pipeline import curate
from curate.sources import open_source
from curate.sources.rows import ROW_SCHEMA
from tests.builders.suites import read_files, table
from tests.curate.conftest import network


def percentiles(rows: list[tuple[Any, ...]], usable: list[bool] | None = None) -> list[float | None]:
    table = pa.Table.from_pylist(
        [{"nn": nn, "task": "t", "dataset": d, "metric": "acc", "epoch": e, "accuracy": a} for nn, d, e, a in rows],
        schema=ROW_SCHEMA,
    )
    found = rank_rows(table, np.array(usable or [True] * len(rows))).percentiles
    return [None if np.isnan(value) else round(float(value), 6) for value in found]


@table(__file__, "score.md", "By hand", globals())
def test_by_hand(rows: list[tuple[Any, ...]], expected: list[float | None]) -> None:
    assert percentiles(rows) == expected
    assert percentiles(rows[::-1]) == expected[::-1]
    unusable = [("z", "c", 1, 0.9), *rows, ("y", "c", 1, 0.0)]
    assert percentiles(unusable, [False, *[True] * len(rows), False]) == [None, *expected, None]


#: A result: code, data set, epoch, accuracy. The network is named after its code.
Result = tuple[int, str, int, float | None]


RESULTS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.sampled_from("cdm"),
        st.integers(1, 3),
        st.none() | st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.7, 0.9]),
    ),
    max_size=40,
)


def corpus_of(results: Sequence[Result], problems: Mapping[int, str] = MappingProxyType({})) -> Any:
    codes = np.array([code for code, *_ in results], np.int64)
    rows = [
        {"nn": f"n{code}", "task": "t", "dataset": dataset, "metric": "acc", "epoch": epoch, "accuracy": accuracy}
        for code, dataset, epoch, accuracy in results
    ]
    return SimpleNamespace(
        rows=pa.Table.from_pylist(rows, ROW_SCHEMA), code_of_row=codes, problems=problems, ids=[""] * 7
    )


@given(results=RESULTS, data=st.data())
def test_the_best_row_is_of_the_data_set_shown(results: list[Result], data: st.DataObject) -> None:
    rows_of: dict[int, list[int]] = defaultdict(list)
    for row, (code, *_) in enumerate(results):
        rows_of[code].append(row)
    shown = {code: data.draw(st.sampled_from(rows)) for code, rows in rows_of.items()}
    best = find_best_rows(corpus_of(results), shown)
    for code, home in shown.items():
        there = [
            (-accuracy, epoch)
            for other, dataset, epoch, accuracy in results
            if other == code and dataset == results[home][1] and accuracy is not None
        ]
        assert (code in best) == bool(there)
        if there:
            _, dataset, epoch, accuracy = results[best[code]]
            assert (dataset, (-accuracy, epoch)) == (results[home][1], min(there))  # type: ignore[operator]


def test_rows_that_cannot_be_used_are_no_best_ones() -> None:
    results: list[Result] = [(0, "c", 1, 0.3), (0, "c", 2, 0.9), (0, "c", 3, math.inf)]
    assert find_best_rows(corpus_of(results), {0: 0}) == {0: 1}
    assert find_best_rows(corpus_of(results, {1: "broken"}), {0: 0}) == {0: 0}


def test_a_percent_among_fractions_is_off_the_scale_and_percents_are_not() -> None:
    fractions: list[Result] = [(i % 7, "c", i, 0.5) for i in range(40)]
    percents: list[Result] = [(i % 7, "d", i, 50.0 + i) for i in range(40)]
    mixed = [*fractions, (3, "c", 1, 45.0), *percents, (2, "c", 2, -0.1)]
    assert find_off_scale(corpus_of(mixed)) == [40, 81]
    assert find_off_scale(corpus_of(mixed, {40: "broken"})) == [81]
    assert find_off_scale(corpus_of(percents)) == find_off_scale(corpus_of([])) == []
    half = [*itertools.chain.from_iterable(((0, "c", i, 0.5), (1, "c", i, 50.0)) for i in range(9))]
    assert find_off_scale(corpus_of(half)) == [], "no scale to be off"


# Which calls load trained weights, and which resemble them.

CASES = read_files(__file__, "pretrained.md")


@pytest.mark.parametrize("name", CASES)
def test_the_marked_lines_are_found_and_no_others(name: str) -> None:
    lines = CASES[name].split("\n")
    marked = [line for line in lines if line.endswith(("# loads", "# mistaken"))]
    assert [one.text for one in find_pretrained(CASES[name])] == [line.strip() for line in marked]


def test_text_is_cut_and_lines_are_those_of_the_parser() -> None:
    code = "import timm\r\nx = '\x0c'\r\n   \r\nm = timm.create_model('" + "a" * 300 + "', pretrained=True)\r\n"
    (found,) = find_pretrained(code)
    assert (found.line, len(found.text)) == (4, 160)
    assert found.text.startswith("m = timm.create_model('aaa")


@table(__file__, "score.md", "Any code is read in bounded time", globals())
def test_any_code_is_read_in_bounded_time(code: str) -> None:
    assert not isinstance(code_features(f"import timm\n{code}\n"), str)


def test_what_is_no_number_or_off_its_scale_is_a_note(tmp_path: Path) -> None:
    codes = [network([place, 3, 7]) for place in (1, 5, 9)]
    stated = ["notanumber", 1.7, 0.5, 0.6, None]
    rows = [
        {"nn": "n", "nn_code": codes[place % 3], "dataset": "d", "epoch": place, "accuracy": accuracy}
        for place, accuracy in enumerate(stated)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = curate(open_source(str(tmp_path / "rows.jsonl")), tmp_path / "out", CurateOptions(graph="off"), jobs=1)
    assert manifest.details["notes"] == ["outside 0 to 1: row 1: accuracy 1.7"]
    assert [check for check in verify(tmp_path / "out", jobs=1) if not check.ok] == []
