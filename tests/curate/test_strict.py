"""What is decided by a trace: what computes the same, and with `--require-runs` what runs; rows left out by value."""

import itertools
import random
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curate.compute.outcome import NOT_RUN
from curate.folder.explain import explain
from curate.interface import summary_text
from curate.kinds import verify
from curate.model.corpus import STAYS, Previous, PublishedRecord, read_previous
from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.run.strict import curate_strict
from lemur_core.files.errors import UserError
from lemur_core.similarity.minhash import jaccard
from manifests.folders.manifest import read_manifest
from tests.builders.fake_hub import FakeHub
from tests.curate import conftest
from tests.curate.conftest import MemorySource, Told

Row = dict[str, Any]
CHAINS, STEPS = 3, 10
SIZE = CHAINS * STEPS
IDENTITIES = ("graph", "graph_widths", "graph_eval", "behavior_eval")


class Codes(list[str]):
    """Codes that are told in few words where a property fails: hypothesis warns of longer ones."""

    def __repr__(self) -> str:
        return f"{len(self)} codes"


@pytest.fixture(scope="module")
def codes() -> Codes:
    """Three chains of networks; each step changes two of thirty blocks, so that some are near, and some tied."""
    dice = random.Random(11)
    made = Codes()
    for _ in range(CHAINS):
        blocks = [dice.randrange(12) for _ in range(30)]
        for _ in range(STEPS):
            for place in dice.sample(range(30), 2):
                blocks[place] = (blocks[place] + dice.randrange(1, 12)) % 12
            made.append(conftest.network(blocks))
    assert len(set(made)) == SIZE
    return made


def rows_of(codes: list[str], picked: list[int]) -> list[Row]:
    """Rows without accuracy, so that names alone rank them, whatever other rows there are."""
    return [{"nn": f"{'ab'[place % 2]}-{place:02}", "nn_code": codes[place]} for place in picked]


PICKED = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=SIZE, unique=True)
COMPUTED = st.lists(st.one_of(st.none(), st.sampled_from("abcdefgh")), min_size=SIZE, max_size=SIZE)
SUPPORTS: list[Any] = [{}, {"min_per_prefix": 2}, {"topup_prefix": ("b",), "topup_per_prefix": 3}]
SUPPORT = st.sampled_from(SUPPORTS)


@given(picked=PICKED, computed=COMPUTED, support=SUPPORT, require=st.booleans())
@example([0, 6, 23, 4, 2, 24, 27], ["a" if place in (24, 27) else None for place in range(SIZE)], SUPPORTS[1], False)
def test_tracing_what_is_about_to_be_kept_is_as_good_as_tracing_all(
    codes: list[str],
    curated: Any,
    picked: list[int],
    computed: list[str | None],
    support: Any,
    require: bool,
) -> None:
    rows, computes = rows_of(codes, picked), dict(zip(codes, computed, strict=True))
    result = curated(rows)
    lazy, eager = (Told(result.corpus, computes.__getitem__) for _ in range(2))
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
            again = curate_strict(alone.corpus, CurateOptions(), Told(alone.corpus, computes.__getitem__))
            assert kept == {alone.corpus.codes[code_index] for code_index in again.kept}


def test_other_training_of_one_network_is_said(codes: list[str], curated: Any) -> None:
    result = curated([{"nn": "a", "nn_code": codes[0]}, {"nn": "b", "nn_code": codes[STEPS]}])
    for glue, said in (
        ("1", "computes what a computes"),
        ("2", "computes what a computes; same network, other training"),
    ):
        of = {codes[0]: {"graph": "g", "glue": "1"}, codes[STEPS]: {"graph": "g", "glue": glue}}
        outcome = curate_strict(result.corpus, CurateOptions(), Told(result.corpus, of.__getitem__))
        assert outcome.decisions[1].reason == said


def test_the_folder_says_what_does_not_run(codes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out stays in the table of graphs, from which the folder is derived again."""
    failing = {codes[0], codes[STEPS]}

    def trace(_rows: Any, code_of: Callable[[int], str], **_: object) -> Any:
        return Told(code_of, lambda code: None if code in failing else {"error": "not_recorded: too long"})

    monkeypatch.setattr("curate.run.pipeline.GraphTracer", trace)
    rows = rows_of(codes, list(range(SIZE)))
    for name, require in (("plain", False), ("required", True)):
        curate(MemorySource(rows), tmp_path / name, CurateOptions(require_runs=require), jobs=1)
        assert [check for check in verify(tmp_path / name, jobs=1) if not check.ok] == []
        records = pq.read_table(tmp_path / name / "data" / "records").to_pylist()
        failed = {row["nn"]: (row["runs"], row["runs_error"]) for row in records if not row["runs"]}
        assert failed == ({} if require else dict.fromkeys(["a-00", "a-10"], (False, "forward_failed: ValueError: no")))
    counts = read_manifest(tmp_path / "required").counts
    assert counts["runs"] == {"runs": len(records), "left_out": {"forward_failed": 2}}
    assert counts["rows"]["filter"] == 2
    assert "## Networks that do not run" in (tmp_path / "required" / "report.md").read_text()
    assert "forward_failed: ValueError" in "\n".join(explain(tmp_path / "required", "a-10").lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unsafe_no_sandbox": True, "graph": "off"}, "nothing is run with --graph off and no --chat"),
        ({"require_runs": True, "graph": "off"}, "--require-runs: a trace says what runs"),
        ({"unsafe_no_sandbox": True, "graph": "off", "chat": True}, None),
        ({"graph": "zzz"}, "--graph zzz: input should be 'survivors', 'all', 'keep-different' or 'off'"),
        ({"seed": -1}, "--seed -1: input should be greater than or equal to 0"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str | None) -> None:
    with nullcontext() if message is None else pytest.raises(UserError, match=re.escape(message)):
        CurateOptions(**options)  # conversations alone allow to do without walls


# Rows chosen by task, data set, metric and prefix: what is left out says so, and the rest is decided as if alone.

CODE = "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x{}\n"
NAMES = ("ga-1", "GAN", "ga", "GA-2-b", "GenFractalNet-1", "GenFractal", "rag-1", "-x")
VALUES = {
    "task": ("img-classification", "txt-image", None),
    "dataset": ("cifar-10", "cifar-100", None),
    "metric": ("acc", "iou"),
}


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
    | {"include": st.sampled_from([(), ("ga-",), ("genfractal", "rag"), ("-",)])}
)


@given(rows=rows_drawn, wanted=wanted_drawn)
def test_rows_are_left_out_by_value_and_prefix(
    curated: Any, rows: list[dict[str, Any]], wanted: dict[str, tuple[str, ...]]
) -> None:
    if not all(any(row[name] == value for row in rows) for name in VALUES for value in wanted[name]):
        with pytest.raises(UserError, match=r"^--(task|dataset|metric) \S+: no row has it; "):
            curated(rows, **wanted)
        return
    include = wanted["include"]
    for row, decision in zip(rows, curated(rows, **wanted).decisions, strict=True):
        lacks = [name for name in VALUES if wanted[name] and row[name] not in wanted[name]]
        reasons = [f"{name} is {row[name] or 'not stated'} (--{name})" for name in lacks]
        if include and not any(
            f"{row['nn']}-".lower().startswith(f"{prefix.rstrip('-') or '-'}-") for prefix in include
        ):
            reasons.append(f"name does not start with {', '.join(include)} (--include)")
        assert (decision.stage == "filter") == bool(reasons)
        assert decision.reason == reasons[0] if reasons else decision.canonical is not None


def test_unknown_value_names_the_nearest_and_the_most_frequent(curated: Any) -> None:
    rows = [network(f"n{i}", dataset=name) for i, name in enumerate(["cifar-10", "cifar-10", "svhn", "mnist", None])]
    with pytest.raises(UserError) as caught:
        curated(rows, dataset=("svhn", "CIFAR10"))
    assert str(caught.value) == "--dataset CIFAR10: no row has it; there are: cifar-10, mnist, svhn"
    with pytest.raises(UserError, match=r"no row has it; near names: cifar-10$"):
        curated(rows, dataset=("CIFAR",))


# Growth: what a snapshot kept stays kept and keeps its split; what is new joins no two published splits.


def publish(result: Any, outcome: Any) -> Previous:
    """What was kept, as the next run reads it."""
    ids = result.corpus.ids
    return Previous({ids[index]: PublishedRecord("n", outcome.splits[index]) for index in outcome.kept}, {}, None)


class View:
    """Codes of a corpus by index, compared by brute force."""

    def __init__(self, corpus: Any, told: dict[str, Row]) -> None:
        self._features = corpus.features
        self.answers = [told[corpus.codes[index]] for index in range(len(corpus.ids))]

    def lexical(self, one: int, other: int) -> float:
        return jaccard(*(self._features.shingles(int(self._features.shingle_set[index])) for index in (one, other)))

    def structural(self, one: int, other: int) -> float:
        return jaccard(*(self._features.elements[int(self._features.fingerprint[index])] for index in (one, other)))

    def share(self, one: int, other: int, *names: str) -> bool:
        first, second = self.answers[one], self.answers[other]
        return any(first.get(name) is not None and first.get(name) == second.get(name) for name in names)

    def near(self, one: int, other: int) -> bool:
        """Guarantees 1 and 7."""
        texts = self.lexical(one, other) >= 0.90 or self.structural(one, other) >= 0.95
        return texts or self.share(one, other, "graph")

    def tied(self, one: int, other: int) -> bool:
        """Guarantee 4."""
        same = self._features.fingerprint[one] == self._features.fingerprint[other]
        return bool(same) or self.lexical(one, other) >= 0.70 or self.share(one, other, *IDENTITIES)


#: What each code computes: equal graphs compute the same, equal letters the same in eval mode or up to widths.
IN_LETTERS = st.lists(
    st.none() | st.sampled_from(["a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2", "e1"]), min_size=SIZE
)


def tell(codes: list[str], computed: list[str | None]) -> dict[str, Row]:
    """The sandbox's answers; of one letter, graphs are equal in eval mode, (c) numbers are, or (d and e) graphs up to widths."""
    answers = {}
    for code, name in zip(codes, computed, strict=False):
        answer = {} if name is None else dict.fromkeys(IDENTITIES, name)
        if name is not None:
            answer["graph_eval" if name[0] < "c" else "behavior_eval" if name[0] == "c" else "graph_widths"] = name[0]
        answers[code] = answer or {"error": "forward_failed: ValueError: no"}
    return answers


@given(first=PICKED, second=PICKED, computed=IN_LETTERS, seed=st.integers(0, 3), dice=st.randoms(use_true_random=False))
@example(
    [0], [0, 1, 2, 17, 20, 3, 4, 6], ["a1" if place in (1, 17) else None for place in range(SIZE)], 0, random.Random(0)
)
def test_growth_keeps_its_word(
    codes: list[str],
    curated: Any,
    first: list[int],
    second: list[int],
    computed: list[str | None],
    seed: int,
    dice: random.Random,
) -> None:
    answers, options = tell(codes, computed), CurateOptions(seed=seed)

    def decide(result: Any, previous: Previous | None = None) -> Any:
        return curate_strict(result.corpus, options, Told(result.corpus, answers.__getitem__), previous)

    before, result = curated(rows_of(codes, first)), curated(rows_of(codes, second))
    previous, corpus = publish(before, decide(before)), result.corpus
    outcome, view = decide(result, previous), View(corpus, answers)
    there = previous.find(corpus)
    assert there.keys() <= set(outcome.kept), "a published record is gone"
    assert {index: outcome.splits[index] for index in there} == there
    gone = {item["id"]: item["reason"] for item in outcome.details["previous"]["gone"]}
    assert gone == dict.fromkeys(previous.records.keys() - set(corpus.ids), "its code is not in the source")
    assert outcome.details["previous"]["kept"] == len(there)
    assert outcome.details["inherited"] == [], "the rules are those of before"
    for one, other in itertools.combinations(outcome.kept, 2):
        assert not view.near(one, other), "two kept records are near or compute the same"
        assert not view.tied(one, other) or outcome.splits[one] == outcome.splits[other], "a leak"
    whole = outcome.whole.splits
    known = View(corpus, answers)  # of what nobody traced, the text is known alone
    known.answers = [answer if index in outcome.graphs else {} for index, answer in enumerate(view.answers)]
    for one, other in itertools.combinations(whole, 2):
        assert not known.tied(one, other) or whole[one] == whole[other], "a leak among all codes"
    assert len(outcome.decisions) == len(second)
    for index, decision in enumerate(outcome.decisions):  # one row for each code
        other = decision.canonical
        assert other in outcome.kept, "no witness"
        if decision.stage == "leak":
            splits = {split for kept, split in outcome.splits.items() if view.tied(index, kept)}
            assert len(splits) > 1, "not kept for no reason"
            assert view.tied(index, other)
            assert decision.similarity == 1 or decision.similarity == view.lexical(index, other) >= 0.70
        elif decision.stage in ("lexical", "structural"):
            assert decision.similarity == getattr(view, decision.stage)(index, other) >= 0.90
        elif decision.stage is not None:
            assert (decision.stage, view.share(index, other, "graph")) == ("graph", True)
        else:
            assert decision.reason == (STAYS if index in there else "kept")
    mixed = dice.sample(second, len(second))
    again = curated(rows_of(codes, mixed))
    other = decide(again, previous)
    fates = [{again.corpus.ids[index]: value for index, value in other.splits.items()}]
    assert fates == [{corpus.ids[index]: value for index, value in outcome.splits.items()}], "the order matters"


def test_a_code_between_two_splits_is_a_leak_and_twins_of_before_are_inherited(
    codes: list[str], curated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins in eval mode across the splits of an older release stay and are listed; what joins them is not kept."""
    rows = rows_of(codes, [0, STEPS, 2 * STEPS])
    far, corpus = [row["nn_code"] for row in rows], curated(rows).corpus
    previous = Previous({corpus.ids[0]: PublishedRecord("n0", "train"), corpus.ids[1]: PublishedRecord("n1", "test")})
    apart = {code: dict.fromkeys(IDENTITIES, str(place) * 64) for place, code in enumerate(far)}
    joined = apart | {far[2]: {"graph": "c", "graph_widths": "0" * 64, "graph_eval": "1" * 64}}
    outcome = curate_strict(corpus, CurateOptions(), Told(corpus, joined.__getitem__), previous)
    leak = outcome.decisions[2]
    assert (leak.stage, leak.similarity, outcome.details["inherited"]) == ("leak", 1.0, [])
    assert leak.canonical in (0, 1)
    assert leak.reason.startswith("would join two published splits: its structure or computation is that of a-")
    assert outcome.whole.splits.get(2) is None

    twins = {code: {**of, "graph_eval": "e" * 64} for code, of in apart.items()}

    tracer = lambda _rows, code_of, **_: Told(code_of, twins.__getitem__)  # noqa: E731
    monkeypatch.setattr("curate.run.pipeline.GraphTracer", tracer)
    curate(MemorySource(rows), tmp_path / "grown", CurateOptions(), previous=previous, jobs=1)
    found = {row["nn"]: row["stage"] for row in pq.read_table(tmp_path / "grown" / "decisions.parquet").to_pylist()}
    assert found == {"a-00": None, "a-10": None, "a-20": "leak"}, "the last is the twin of both"
    records = pq.read_table(tmp_path / "grown" / "data" / "records").to_pylist()
    assert {row["nn"]: row["split"] for row in records} == {"a-00": "train", "a-10": "test"}
    (pair,) = read_manifest(tmp_path / "grown").details["inherited"]
    assert ({pair["id"], pair["other"]}, pair["stage"], pair["similarity"]) == ({*corpus.ids[:2]}, "leak", 1.0)
    checks = {check.name: check for check in verify(tmp_path / "grown", jobs=1)}
    assert [check for check in checks.values() if not check.ok] == []
    assert checks["leaks"].detail.endswith("none across splits but 1 pair that a previous snapshot kept")


def test_from_one_folder_to_the_next(codes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder and from the Hub, with a network that has gone; and what must be the same."""
    options = CurateOptions(graph="off")
    one = tmp_path / "one"
    curate(MemorySource(rows_of(codes, list(range(20)))), one, options, jobs=1)
    previous = read_previous(str(one))
    name = min(record.nn for record in previous.records.values())
    rows = [row for row in rows_of(codes, list(range(30))) if row["nn"] != name]
    other = CurateOptions(graph="off", lexical_threshold=0.8)
    with pytest.raises(UserError, match=r"--previous: it was made with lexical_threshold 0\.9, this run has 0\.8"):
        curate(MemorySource(rows), tmp_path / "two", other, previous=previous)
    curate(MemorySource(rows), tmp_path / "two", options, previous=previous, jobs=1)
    assert [check for check in verify(tmp_path / "two", jobs=1) if not check.ok] == []
    records = {row["id"]: row["split"] for row in pq.read_table(tmp_path / "two" / "data" / "records").to_pylist()}
    stays = {id_: record.split for id_, record in previous.records.items() if record.nn != name}
    assert stays.items() <= records.items()
    manifest = read_manifest(tmp_path / "two")
    assert [item["nn"] for item in manifest.details["previous"]["gone"]] == [name]
    assert previous.parent in manifest.parents
    text = summary_text(tmp_path / "two", manifest, as_json=False)
    assert f"stay kept, in their splits; gone: {name} (its code is not in the source)" in text

    hub = FakeHub(tmp_path / "hub-cache")
    hub.install(monkeypatch)
    files = {path.relative_to(one).as_posix(): path.read_bytes() for path in one.rglob("*") if path.is_file()}
    first = hub.make("owner/name").edit(**files)
    hub.repos["owner/name"].edit(**{"manifest.json": b"{}"})
    fetched = read_previous(f"hf://datasets/owner/name@{first}")
    assert (fetched.records, fetched.parameters) == (previous.records, previous.parameters)
    assert fetched.parent == previous.parent.model_copy(update={"name": "name"})
    curate(MemorySource(rows), tmp_path / "three", options, previous=fetched, jobs=1)
    for table in ("decisions.parquet", "networks.parquet"):
        assert (tmp_path / "two" / table).read_bytes() == (tmp_path / "three" / table).read_bytes()
    with pytest.raises(UserError, match="owner/name: its manifest"):
        read_previous("hf://datasets/owner/name")
    with pytest.raises(UserError, match="owner/none: "):
        read_previous("hf://datasets/owner/none")
