"""`--check-runs` and `--require-runs`: the selection with a checker that is not the sandbox, and the finished folder."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.compute.runs import RunResult
from curate.folder.explain import explain
from curate.kinds import verify
from curate.model.options import CurateOptions, matching_prefix
from curate.published.outcome import count_decisions
from curate.run.pipeline import curate
from curate.run.strict import curate_strict
from lemur_core.files.errors import UserError
from manifests.folders.croissant import restate_croissant
from manifests.folders.manifest import list_outputs, read_manifest, write_manifest
from tests.builders.suites import table

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


class Fake:
    """A check that knows by the text of a code whether it runs, and remembers what it was asked."""

    def __init__(self, corpus: Any, failing: set[str]) -> None:
        self._corpus, self._failing = corpus, failing
        self.asked: set[int] = set()

    def __call__(self, shown: Mapping[int, int]) -> dict[int, RunResult]:
        self.asked |= set(shown)
        failed = RunResult(False, "forward_failed: ValueError: no")
        return {code: failed if self._corpus.codes[code] in self._failing else RunResult(True) for code in shown}


def rows_of(codes: list[str], picked: list[int]) -> list[Row]:
    """Rows without accuracy, so that names alone rank them, whatever other rows there are."""
    return [{"nn": f"{'ab'[place % 2]}-{place:02}", "nn_code": codes[place]} for place in picked]


def require(result: Any, failing: set[str], **chosen: Any) -> tuple[Any, Fake]:
    check = Fake(result.corpus, failing)
    return curate_strict(result.corpus, CurateOptions(require_runs=True, **chosen), check), check


PICKED = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=SIZE, unique=True)
FAILING = st.sets(st.integers(0, SIZE - 1))
SUPPORT = st.sampled_from([{}, {"min_per_prefix": 2}, {"topup_prefix": ("b",), "topup_per_prefix": 3}])


@pytest.mark.slow
@given(picked=PICKED, failing=FAILING, support=SUPPORT, dice=st.randoms(use_true_random=False))
def test_only_what_runs_is_kept_and_stands_for_others(
    codes: list[str], curated: Any, picked: list[int], failing: set[int], support: dict[str, Any], dice: random.Random
) -> None:
    fails = {codes[place] for place in failing}
    rows = rows_of(codes, picked)
    result = curated(rows)
    outcome, check = require(result, fails, **support)
    running = [row for row in rows if row["nn_code"] not in fails]
    kept = {result.corpus.codes[code] for code in outcome.kept}
    assert not kept & fails
    if not support:  # else a network that does not run may have had a say in which others are farthest
        assert kept == set(curated(running).kept if running else ()), "not the selection over the networks that run"
    for row, decision in zip(rows, outcome.decisions, strict=True):
        if decision.stage == "filter":
            assert row["nn_code"] in fails
            assert decision.reason == "does not run (--require-runs): forward_failed: ValueError: no"
            assert decision.canonical is None
        elif decision.stage is not None:
            assert decision.canonical in outcome.kept
            threshold = {"exact": 1.0, "lexical": 0.90, "structural": 0.95}[decision.stage]
            assert decision.similarity >= threshold
    if kept:
        alone = curated([row for row in rows if row["nn_code"] in kept])
        assert set(alone.kept) == kept, "two kept networks are near-duplicates"
    judged = sum(decision.stage != "filter" for decision in outcome.decisions)
    assert outcome.details["lsh"]["sets"] <= judged
    assert outcome.details["lsh"]["recall"] == 1.0
    untried = set(range(len(result.corpus.ids))) - check.asked
    assert all(outcome.decisions[code].stage not in (None, "filter") for code in untried)

    places = list(range(len(rows)))
    dice.shuffle(places)
    shuffled = [rows[place] for place in places]
    other = curated(shuffled)
    again, _ = require(other, fails, **support)
    assert {other.corpus.ids[code] for code in again.kept} == {result.corpus.ids[code] for code in outcome.kept}
    fates = {row["nn"]: (d.stage, d.reason) for row, d in zip(rows, outcome.decisions, strict=True)}
    assert fates == {row["nn"]: (d.stage, d.reason) for row, d in zip(shuffled, again.decisions, strict=True)}
    assert again.notes == outcome.notes


def test_what_stood_behind_a_failing_network_comes_forward(codes: list[str], curated: Any) -> None:
    """The first stands for the second; where it does not run, the second is kept, and stands for the third."""
    result = curated(rows_of(codes, [0, 2, 4]))
    assert [decision.stage for decision in result.decisions] == [None, "lexical", None]
    outcome, check = require(result, {codes[0]})
    assert [decision.stage for decision in outcome.decisions] == ["filter", None, "lexical"]
    outcome.runs = check({code: outcome.representatives[code] for code in outcome.kept})
    counts = count_decisions(result.corpus, outcome)
    assert counts["runs"]["left_out"] == {"forward_failed": 1}
    assert counts["rows"]["filter"] == 1


def test_nothing_is_checked_unless_it_is_required(codes: list[str], curated: Any) -> None:
    result = curated(rows_of(codes, list(range(8))))
    check = Fake(result.corpus, set(codes))
    assert curate_strict(result.corpus, CurateOptions(check_runs=True), check).kept == result.outcome.kept
    assert not check.asked


@table(__file__, "require_runs.md", "Options that do not go together are refused", globals())
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        CurateOptions(**options)


# --- the finished folder ------------------------------------------------------------------------------------------------


@pytest.fixture
def run(codes: list[str], memory_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Curate rows to a folder; codes 0 and 8 do not run, 16 cannot be tried."""

    class Checker:
        def __init__(self, corpus: Any, **_: object) -> None:
            self._corpus = corpus

        def __enter__(self) -> "Checker":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __call__(self, shown: Mapping[int, int]) -> dict[int, RunResult]:
            known = {
                codes[0]: RunResult(False, "forward_failed: ValueError: a | b"),
                codes[8]: RunResult(False, "timeout: too long"),
                codes[16]: RunResult(None, "unknown_input: no task"),
            }
            return {code: known.get(self._corpus.codes[code], RunResult(True)) for code in shown}

    monkeypatch.setattr("curate.run.pipeline.RunChecker", Checker)

    def curate_to(name: str, **chosen: Any) -> Path:
        curate(memory_source(rows_of(codes, list(range(SIZE)))), tmp_path / name, CurateOptions(**chosen), jobs=1)
        return tmp_path / name

    return curate_to


def records(folder: Path) -> list[Row]:
    return [row for path in sorted(folder.glob("data/records/*.parquet")) for row in pq.read_table(path).to_pylist()]


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.detail for check in verify(folder, jobs=1) if not check.ok}


def test_the_column_the_counts_and_the_report(run: Callable[..., Path]) -> None:
    folder = run("checked", check_runs=True)
    found = {row["nn"]: (row["runs"], row["runs_error"]) for row in records(folder)}
    assert found.pop("a-00") == (False, "forward_failed: ValueError: a | b")
    assert found.pop("a-08") == (False, "timeout: too long")
    assert found.pop("a-16") == (None, "unknown_input: no task")
    assert set(found.values()) == {(True, None)}
    manifest = read_manifest(folder)
    errors = {"forward_failed": 1, "timeout": 1, "unknown_input": 1}
    assert manifest.counts["runs"] == {
        "runs": len(found), "fails": 2, "not_tried": 1, "errors": errors, "left_out": {}
    }  # fmt: skip
    assert manifest.parameters["check_runs"] is True
    report = (folder / "report.md").read_text()
    assert f"## Networks that run\n\n{len(found)} kept networks of {len(found) + 3} ran" in report
    assert "| `forward_failed` | 1 | 33.3 % |" in report
    card = (folder / "README.md").read_text()
    assert "2 do not run and 1 could not be tried;\n`runs_error` says why." in card
    assert failed(folder) == {}
    assert "runs        no: timeout: too long" in explain(folder, "a-08").lines


def test_required_runs(run: Callable[..., Path]) -> None:
    folder = run("required", require_runs=True)
    assert {row["runs"] for row in records(folder)} == {True}
    manifest = read_manifest(folder)
    assert manifest.counts["runs"]["left_out"] == {"forward_failed": 1, "timeout": 1, "unknown_input": 1}
    assert manifest.parameters["check_runs"] is True
    assert "only networks that run" in (folder / "report.md").read_text()
    assert failed(folder) == {}
    assert "does not run (--require-runs): timeout" in "\n".join(explain(folder, "a-08").lines)


def test_without_the_option_nothing_is_said(run: Callable[..., Path]) -> None:
    folder = run("plain", graph="off")
    assert {(row["runs"], row["runs_error"]) for row in records(folder)} == {(None, None)}
    assert "runs" not in read_manifest(folder).counts
    assert "Networks that run" not in (folder / "report.md").read_text()
    assert "constructed" not in (folder / "README.md").read_text().partition("## Columns")[0]


@table(__file__, "require_runs.md", "Verify sees a column that is not so", globals())
def test_verify_sees_a_column_that_is_not_so(
    run: Callable[..., Path], asked: str, change: dict[str, object], found: str
) -> None:
    """One record is changed, and all digests are made to fit."""
    folder, name = run("changed", **{asked: True}), "a-00" if asked == "check_runs" else "a-02"
    path = next(
        path
        for path in sorted(folder.glob("data/records/*.parquet"))
        if name in pq.read_table(path).column("nn").to_pylist()
    )
    table = pq.read_table(path)
    rows = table.to_pylist()
    place = [row["nn"] for row in rows].index(name)
    rows[place] |= change
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    metadata = folder / "croissant.json"
    restate_croissant(metadata, metadata, list_outputs(folder, {}))
    manifest = read_manifest(folder)
    outputs = list_outputs(folder, {item.path: item.rows for item in manifest.outputs if item.rows is not None})
    (folder / "manifest.json").unlink()
    write_manifest(folder, manifest.model_copy(update={"outputs": outputs}))
    assert list(failed(folder)) == ["derived"]
    assert found in failed(folder)["derived"]


def test_the_command_says_what_ran(
    run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from curate.commands import summary_text

    folder = run("checked", check_runs=True)
    print(summary_text(folder, read_manifest(folder), as_json=False))
    assert "of the kept run; 2 do not, 1 could not be tried" in capsys.readouterr().out
    print(summary_text(folder, read_manifest(folder), as_json=True))
    assert json.loads(capsys.readouterr().out)["counts"]["runs"]["fails"] == 2


# Rows chosen by task, data set, metric and prefix: what is left out says so, and the rest is decided as if alone.

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
