"""Rows chosen by task, data set, metric and prefix: what is left out says so, and the rest is decided as if alone."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.compat.profile import curate_like_nndup
from curate.model.corpus import CodeFile, read_corpus
from curate.model.options import CurateOptions, matching_prefix
from curate.published.outcome import CurationOutcome
from lemur_core.files.errors import UserError
from tests.builders.suites import table

CODE = "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x{}\n"
NAMES = ("ga-1", "GAN", "ga", "GA-2-b", "GenFractalNet-1", "GenFractal", "rag-1")
VALUES = {
    "task": ("img-classification", "txt-image", None),
    "dataset": ("cifar-10", "cifar-100", None),
    "metric": ("acc", "iou"),
}


@table(__file__, "filters.md", "Prefixes match whole", globals())
def test_prefixes_match_whole(name: str, prefixes: list[str], place: int | None) -> None:
    assert matching_prefix(name, prefixes) == place


def network(nn: str, code: int = 0, accuracy: float = 0.5, **row: Any) -> dict[str, Any]:
    benchmark = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1}
    return {"nn": nn, "nn_code": CODE.format(f" + {code}" * (code + 1)), "accuracy": accuracy, **benchmark, **row}


rows_drawn = st.lists(
    st.builds(
        network,
        st.sampled_from(NAMES),
        st.integers(0, 3),
        st.sampled_from([0.1, 0.5, 0.9]),
        **{name: st.sampled_from(values) for name, values in VALUES.items()},
    ),
    min_size=1,
    max_size=12,
)
wanted_drawn = st.fixed_dictionaries(
    {
        name: st.lists(st.sampled_from([v for v in values if v]), max_size=2, unique=True).map(tuple)
        for name, values in VALUES.items()
    }
)


def fits(row: dict[str, Any], wanted: dict[str, tuple[str, ...]]) -> bool:
    return all(not values or row[name] in values for name, values in wanted.items())


def asks_for_what_is_there(rows: Sequence[dict[str, Any]], wanted: dict[str, tuple[str, ...]]) -> bool:
    return all(any(row[name] == value for row in rows) for name, values in wanted.items() for value in values)


@given(rows=rows_drawn, wanted=wanted_drawn)
def test_rows_are_left_out_by_value(
    curated: Any, rows: list[dict[str, Any]], wanted: dict[str, tuple[str, ...]]
) -> None:
    if not asks_for_what_is_there(rows, wanted):
        with pytest.raises(UserError, match=r"^--(task|dataset|metric) \S+: no row has it; "):
            curated(rows, **wanted)
        return
    decisions = curated(rows, **wanted).decisions
    assert [decision.stage == "filter" for decision in decisions] == [not fits(row, wanted) for row in rows]
    for row, decision in zip(rows, decisions, strict=True):
        if decision.stage == "filter":
            first = next(name for name in VALUES if wanted[name] and row[name] not in wanted[name])
            assert decision.reason == f"{first} is {row[first] or 'not stated'} (--{first})"


def like_nndup(memory_source: Any, rows: list[dict[str, Any]], **chosen: Any) -> CurationOutcome:
    with tempfile.TemporaryDirectory() as folder, CodeFile(Path(folder) / "codes") as codes:
        options = CurateOptions(profile="nn-dup", **chosen)
        return curate_like_nndup(read_corpus(memory_source(rows), codes, "abstract", 1), options, 1)


@pytest.mark.slow
@given(rows=rows_drawn, wanted=wanted_drawn, prefixes=st.sampled_from([(), ("ga-",), ("GenFractalNet", "rag-")]))
def test_profile_nn_dup_decides_as_if_the_rest_were_all(
    warm: Any,
    memory_source: Any,
    rows: list[dict[str, Any]],
    wanted: dict[str, tuple[str, ...]],
    prefixes: tuple[str, ...],
) -> None:
    warm(row["nn_code"] for row in rows)
    left = [
        place
        for place, row in enumerate(rows)
        if fits(row, wanted) and (not prefixes or matching_prefix(row["nn"], prefixes) is not None)
    ]
    if not left or not asks_for_what_is_there(rows, wanted):
        return
    found = like_nndup(memory_source, rows, nn_prefixes=prefixes, **wanted)
    alone = like_nndup(memory_source, [rows[place] for place in left])
    assert [found.decisions[place].stage for place in left] == [decision.stage for decision in alone.decisions]
    assert [found.decisions[place].similarity for place in left] == [
        decision.similarity for decision in alone.decisions
    ]
    assert {row for row, decision in enumerate(found.decisions) if decision.stage == "filter"} == {
        *range(len(rows))
    } - {*left}
    assert list(found.splits.values()) == list(alone.splits.values())
    assert [rows[row] for row in found.representatives.values()] == [
        rows[left[row]] for row in alone.representatives.values()
    ]


def test_unknown_value_names_the_nearest_and_the_most_frequent(curated: Any) -> None:
    rows = [network(f"n{i}", dataset=name) for i, name in enumerate(["cifar-10", "cifar-10", "svhn", "mnist", None])]
    with pytest.raises(UserError) as caught:
        curated(rows, dataset=("svhn", "CIFAR10"))
    assert str(caught.value) == "--dataset CIFAR10: no row has it; near: cifar-10; there are cifar-10, mnist, svhn"
    many = [network(f"n{i}", metric=f"metric-{i:02}") for i in range(15)]
    with pytest.raises(UserError, match=r"near: metric-\d\d, .* and 3 others$"):
        curated(many, metric=("metric",))


def test_row_that_cannot_be_used_stays_invalid(curated: Any) -> None:
    rows = [network("a"), {**network("b", dataset="svhn"), "nn_code": None, "problem": "nn_code is missing"}]
    assert [decision.stage for decision in curated(rows, dataset=("cifar-10",)).decisions] == [None, "invalid"]
    with pytest.raises(UserError, match="--dataset svhn: no row has it"):
        curated(rows, dataset=("svhn",))
