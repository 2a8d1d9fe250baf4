"""What is decided by a trace: what computes the same, and with `--require-runs` what runs; rows left out by value."""

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.compute.outcome import NOT_RUN
from curate.folder.explain import explain
from curate.kinds import verify
from curate.model.options import CurateOptions, matching_prefix
from curate.run.pipeline import curate
from curate.run.strict import curate_strict
from lemur_core.files.errors import UserError
from manifests.folders.manifest import read_manifest

Row = dict[str, Any]
SIZE = 24


class Codes(list[str]):
    """Codes, told in few words where a property fails."""

    def __repr__(self) -> str:
        return f"{len(self)} codes"


@pytest.fixture(scope="module")
def codes(network: Callable[..., str], warm: Callable[..., None]) -> Codes:
    """Three chains of networks, neighbors near each other, and the last of a chain far from its first."""
    dice = random.Random(3)
    made = Codes()
    for _ in range(3):
        blocks = [dice.randrange(12) for _ in range(30)]
        for step in range(SIZE // 3):
            blocks = list(blocks)
            blocks[(step * 7) % 30] = (blocks[(step * 7) % 30] + 1 + step) % 12
            made.append(network(blocks))
    assert len(set(made)) == SIZE
    warm(made)
    return made


def rows_of(codes: list[str], picked: list[int]) -> list[Row]:
    """Rows without accuracy, so that names alone rank them, whatever other rows there are."""
    return [{"nn": f"{'ab'[place % 2]}-{place:02}", "nn_code": codes[place]} for place in picked]


PICKED = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=SIZE, unique=True)
COMPUTED = st.lists(st.one_of(st.none(), st.sampled_from("abcdefgh")), min_size=SIZE, max_size=SIZE)
SUPPORT = st.sampled_from([{}, {"min_per_prefix": 2}, {"topup_prefix": ("b",), "topup_per_prefix": 3}])


@given(picked=PICKED, computed=COMPUTED, support=SUPPORT, require=st.booleans())
def test_tracing_what_is_about_to_be_kept_is_as_good_as_tracing_all(
    codes: list[str],
    curated: Any,
    told: Any,
    picked: list[int],
    computed: list[str | None],
    support: Any,
    require: bool,
) -> None:
    rows, computes = rows_of(codes, picked), dict(zip(codes, computed, strict=True))
    result = curated(rows)
    lazy, eager = (told(result.corpus, computes.__getitem__) for _ in range(2))
    options = CurateOptions(require_runs=require, **support)
    outcome = curate_strict(result.corpus, options, lazy)
    chosen = curate_strict(result.corpus, CurateOptions(graph="all", require_runs=require, **support), eager)
    assert [(d.stage, d.canonical, d.reason) for d in outcome.decisions] == [
        (d.stage, d.canonical, d.reason) for d in chosen.decisions
    ]
    assert lazy.known.keys() <= eager.known.keys()
    kept = {result.corpus.codes[code_index] for code_index in outcome.kept}
    names = [computes[code] for code in kept if computes[code] is not None]
    assert len(names) == len(set(names)), "two kept networks compute the same"
    for row, decision in zip(rows, outcome.decisions, strict=True):
        if decision.stage == "filter":
            assert require
            assert computes[row["nn_code"]] is None
            assert decision.reason == f"{NOT_RUN}forward_failed: ValueError: no"
        elif decision.stage is not None:
            assert decision.canonical in outcome.kept
            assert decision.similarity >= {"exact": 1, "lexical": 0.90, "structural": 0.95, "graph": 1}[decision.stage]
    if require:
        assert not any(computes[code] is None for code in kept)
        running = [row for row in rows if computes[row["nn_code"]] is not None]
        if not support and running:  # else a network that does not run may have had a say in which are farthest
            alone = curated(running)
            again = curate_strict(alone.corpus, CurateOptions(), told(alone.corpus, computes.__getitem__))
            assert kept == {alone.corpus.codes[code_index] for code_index in again.kept}


def test_inference_twins_share_a_split(codes: list[str], curated: Any, told: Any) -> None:
    """Equal in eval mode alone: both stay, in one group; so do networks that are equal up to widths."""
    far = [codes[0], codes[8], codes[16]]
    identities = {
        far[0]: {"graph": "a", "graph_widths": "wa", "graph_eval": "e"},
        far[1]: {"graph": "b", "graph_widths": "wb", "graph_eval": "e"},
        far[2]: {"graph": "c", "graph_widths": "wb", "graph_eval": "f"},
    }
    result = curated([{"nn": f"n{place}", "nn_code": code} for place, code in enumerate(far)])
    assert len(set(result.outcome.clusters.values())) == 3
    outcome = curate_strict(result.corpus, CurateOptions(), told(result.corpus, identities.__getitem__))
    assert len(outcome.kept) == 3
    assert len(set(outcome.clusters.values())) == 1


def test_other_training_of_one_network_is_said(codes: list[str], curated: Any, told: Any) -> None:
    result = curated([{"nn": "a", "nn_code": codes[0]}, {"nn": "b", "nn_code": codes[8]}])
    for glue, said in (
        ("1", "computes what a computes"),
        ("2", "computes what a computes; same network, other training"),
    ):
        of = {codes[0]: {"graph": "g", "glue": "1"}, codes[8]: {"graph": "g", "glue": glue}}
        outcome = curate_strict(result.corpus, CurateOptions(), told(result.corpus, of.__getitem__))
        assert outcome.decisions[1].reason == said


def test_the_folder_says_what_does_not_run(
    codes: list[str], memory_source: Any, told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out stays in the table of graphs, from which the folder is derived again."""
    failing = {codes[0], codes[8]}

    def trace(_rows: Any, code_of: Callable[[int], str], **_: object) -> Any:
        return told(code_of, lambda code: None if code in failing else {"error": "not_recorded: too long"})

    monkeypatch.setattr("curate.run.pipeline.GraphTracer", trace)
    rows = rows_of(codes, list(range(SIZE)))
    for name, require in (("plain", False), ("required", True)):
        curate(memory_source(rows), tmp_path / name, CurateOptions(require_runs=require), jobs=1)
        assert [check for check in verify(tmp_path / name, jobs=1) if not check.ok] == []
        records = pq.read_table(tmp_path / name / "data" / "records").to_pylist()
        failed = {row["nn"]: (row["runs"], row["runs_error"]) for row in records if not row["runs"]}
        assert failed == ({} if require else dict.fromkeys(["a-00", "a-08"], (False, "forward_failed: ValueError: no")))
    counts = read_manifest(tmp_path / "required").counts
    assert counts["runs"] == {"runs": len(records), "left_out": {"forward_failed": 2}}
    assert counts["rows"]["filter"] == 2
    assert "## Networks that do not run" in (tmp_path / "required" / "report.md").read_text()
    assert "forward_failed: ValueError" in "\n".join(explain(tmp_path / "required", "a-08").lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unsafe_no_sandbox": True, "graph": "off"}, "nothing is run with --graph off and no --chat"),
        ({"require_runs": True, "graph": "off"}, "--require-runs: a trace says what runs"),
        ({"namespace": "torch", "graph": "off"}, "--namespace: nothing is run"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        CurateOptions(**options)


# Rows chosen by task, data set, metric and prefix: what is left out says so, and the rest is decided as if alone.

CODE = "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x{}\n"
NAMES = ("ga-1", "GAN", "ga", "GA-2-b", "GenFractalNet-1", "GenFractal", "rag-1")
VALUES = {
    "task": ("img-classification", "txt-image", None),
    "dataset": ("cifar-10", "cifar-100", None),
    "metric": ("acc", "iou"),
}


def test_prefixes_match_whole_segments() -> None:
    one, two = (
        [("GA-1", 0), ("GAN", 1), ("GAN-1", 1), ("ga", 0), ("gab", None)],
        [("alt-nn1-x", 0), ("alt-nn12-x", None)],
    )
    assert [(name, matching_prefix(name, ["ga-", "gan-"])) for name, _ in one] == one
    assert [(name, matching_prefix(name, ["alt-nn1"])) for name, _ in two] == two
    assert matching_prefix("x", ["-"]) is matching_prefix("-x", ["-"]) is None


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


def test_unknown_value_names_the_nearest_and_the_most_frequent(curated: Any) -> None:
    rows = [network(f"n{i}", dataset=name) for i, name in enumerate(["cifar-10", "cifar-10", "svhn", "mnist", None])]
    with pytest.raises(UserError) as caught:
        curated(rows, dataset=("svhn", "CIFAR10"))
    assert str(caught.value) == "--dataset CIFAR10: no row has it; near: cifar-10; there are cifar-10, mnist, svhn"
    many = [network(f"n{i}", metric=f"metric-{i:02}") for i in range(15)]
    with pytest.raises(UserError, match=r"near: metric-\d\d, .* and 3 others$"):
        curated(many, metric=("metric",))
