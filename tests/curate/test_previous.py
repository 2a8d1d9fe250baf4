"""Growth: what a snapshot kept stays kept and keeps its split; what is new joins no two published splits."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

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

Row = dict[str, Any]
CHAINS, STEPS = 3, 10
SIZE = CHAINS * STEPS
IDENTITIES = ("graph", "graph_widths", "graph_eval")


class Codes(list[str]):
    def __repr__(self) -> str:
        return f"{len(self)} codes"


@pytest.fixture(scope="module")
def codes(network: Callable[..., str], warm: Callable[..., None]) -> Codes:
    """Three chains of networks; each step changes three of thirty blocks, so that some are near, and some tied."""
    dice = random.Random(11)
    made = Codes()
    for _ in range(CHAINS):
        blocks = [dice.randrange(12) for _ in range(30)]
        for _ in range(STEPS):
            for place in dice.sample(range(30), 3):
                blocks[place] = (blocks[place] + dice.randrange(1, 12)) % 12
            made.append(network(blocks))
    assert len(set(made)) == SIZE
    warm(made)
    return made


def rows_of(codes: list[str], picked: list[int]) -> list[Row]:
    return [{"nn": f"n-{place:02}", "nn_code": codes[place]} for place in picked]


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


PICKED = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=SIZE, unique=True)
#: What each code computes: equal graphs compute the same, equal letters the same in eval mode or up to widths.
COMPUTED = st.lists(st.none() | st.sampled_from(["a1", "a2", "b1", "b2", "c1", "d1", "d2", "e1"]), min_size=SIZE)


def tell(codes: list[str], computed: list[str | None]) -> dict[str, Row]:
    """The sandbox's answers; of one letter, graphs are equal in eval mode, or (d and e) up to widths."""
    answers = {}
    for code, name in zip(codes, computed, strict=False):
        answer = {} if name is None else dict.fromkeys(IDENTITIES, name)
        if name is not None:
            answer["graph_eval" if name[0] < "d" else "graph_widths"] = name[0]
        answers[code] = answer or {"error": "forward_failed: ValueError: no"}
    return answers


@given(first=PICKED, second=PICKED, computed=COMPUTED, seed=st.integers(0, 3), dice=st.randoms(use_true_random=False))
def test_growth_keeps_its_word(
    codes: list[str],
    curated: Any,
    told: Any,
    first: list[int],
    second: list[int],
    computed: list[str | None],
    seed: int,
    dice: random.Random,
) -> None:
    answers, options = tell(codes, computed), CurateOptions(seed=seed)

    def decide(result: Any, previous: Previous | None = None) -> Any:
        return curate_strict(result.corpus, options, told(result.corpus, answers.__getitem__), previous)

    before, result = curated(rows_of(codes, first)), curated(rows_of(codes, second))
    previous, corpus = publish(before, decide(before)), result.corpus
    outcome, view = decide(result, previous), View(corpus, answers)
    there = previous.find(corpus)
    assert there.keys() <= set(outcome.kept), "a published record is gone"
    assert {index: outcome.splits[index] for index in there} == there
    gone = {item["id"]: item["reason"] for item in outcome.details["previous"]["gone"]}
    assert gone == dict.fromkeys(previous.records.keys() - set(corpus.ids), "not in the source")
    assert outcome.details["previous"]["kept"] == len(there)
    assert outcome.details["inherited"] == [], "the rules are those of before"
    for one, other in itertools.combinations(outcome.kept, 2):
        assert not view.near(one, other), "two kept records are near or compute the same"
        assert not view.tied(one, other) or outcome.splits[one] == outcome.splits[other], "a leak"
    whole = outcome.whole.splits
    for one, other in itertools.combinations(whole, 2):
        assert not view.tied(one, other) or whole[one] == whole[other], "a leak among all codes"
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


@given(half=PICKED)
def test_two_steps_and_one_differ_by_what_the_order_allows(codes: list[str], curated: Any, half: list[int]) -> None:
    """A code that only one run keeps comes too late, is near to two splits, or is near to one that only steps keep."""
    first, result = curated(rows_of(codes, half)), curated(rows_of(codes, list(range(SIZE))))
    previous = publish(first, first.outcome)
    outcome = curate_strict(result.corpus, CurateOptions(), previous=previous)
    there, alone = previous.find(result.corpus), set(result.outcome.kept)
    assert outcome.kept or not alone
    for index in alone - set(outcome.kept):
        decision = outcome.decisions[index]
        late = decision.canonical in there
        assert late or decision.stage == "leak" or decision.canonical not in alone, "lost for no reason"


def test_a_code_between_two_splits_is_a_leak_and_twins_of_before_are_inherited(
    codes: list[str], curated: Any, told: Any, memory_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins in eval mode across the splits of an older release stay and are listed; what joins them is not kept."""
    rows = rows_of(codes, [0, STEPS, 2 * STEPS])
    far, corpus = [row["nn_code"] for row in rows], curated(rows).corpus
    previous = Previous({corpus.ids[0]: PublishedRecord("n0", "train"), corpus.ids[1]: PublishedRecord("n1", "test")})
    apart = {code: dict.fromkeys(IDENTITIES, str(place) * 64) for place, code in enumerate(far)}
    joined = apart | {far[2]: {"graph": "c", "graph_widths": "0" * 64, "graph_eval": "1" * 64}}
    outcome = curate_strict(corpus, CurateOptions(), told(corpus, joined.__getitem__), previous)
    leak = outcome.decisions[2]
    assert (leak.stage, leak.similarity, outcome.details["inherited"]) == ("leak", 1.0, [])
    assert leak.canonical in (0, 1)
    assert leak.reason.startswith("would join two published splits: its structure or computation is that of n")
    assert outcome.whole.splits.get(2) is None

    twins = {code: {**of, "graph_eval": "e" * 64} for code, of in apart.items()}

    tracer = lambda _rows, code_of, **_: told(code_of, twins.__getitem__)  # noqa: E731
    monkeypatch.setattr("curate.run.pipeline.GraphTracer", tracer)
    curate(memory_source(rows), tmp_path / "grown", CurateOptions(), previous=previous, jobs=1)
    found = {row["nn"]: row["stage"] for row in pq.read_table(tmp_path / "grown" / "decisions.parquet").to_pylist()}
    assert found == {"n-00": None, "n-10": None, "n-20": "leak"}, "the last is the twin of both"
    records = pq.read_table(tmp_path / "grown" / "data" / "records").to_pylist()
    assert {row["nn"]: row["split"] for row in records} == {"n-00": "train", "n-10": "test"}
    (pair,) = read_manifest(tmp_path / "grown").details["inherited"]
    assert ({pair["id"], pair["other"]}, pair["stage"], pair["similarity"]) == ({*corpus.ids[:2]}, "leak", 1.0)
    checks = {check.name: check for check in verify(tmp_path / "grown", jobs=1)}
    assert [check for check in checks.values() if not check.ok] == []
    assert checks["leaks"].detail.endswith("none across splits but 1 pair that a previous snapshot kept")


def test_from_one_folder_to_the_next(
    codes: list[str], memory_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a folder and from the Hub, with a network that has gone; and what must be the same."""
    options = CurateOptions(graph="off")
    one = tmp_path / "one"
    curate(memory_source(rows_of(codes, list(range(20)))), one, options, jobs=1)
    previous = read_previous(str(one))
    name = min(record.nn for record in previous.records.values())
    rows = rows_of(codes, [place for place in range(30) if f"n-{place:02}" != name])
    other = CurateOptions(graph="off", lexical_threshold=0.8)
    with pytest.raises(UserError, match=r"--previous: it was made with lexical_threshold 0\.9, this run has 0\.8"):
        curate(memory_source(rows), tmp_path / "two", other, previous=previous)
    curate(memory_source(rows), tmp_path / "two", options, previous=previous, jobs=1)
    assert [check for check in verify(tmp_path / "two", jobs=1) if not check.ok] == []
    records = {row["id"]: row["split"] for row in pq.read_table(tmp_path / "two" / "data" / "records").to_pylist()}
    stays = {id_: record.split for id_, record in previous.records.items() if record.nn != name}
    assert stays.items() <= records.items()
    manifest = read_manifest(tmp_path / "two")
    assert [item["nn"] for item in manifest.details["previous"]["gone"]] == [name]
    assert previous.parent in manifest.parents
    text = summary_text(tmp_path / "two", manifest, as_json=False)
    assert f"stay kept, in their splits; gone: {name} (not in the source)" in text

    hub = FakeHub(tmp_path / "hub-cache")
    hub.install(monkeypatch)
    files = {path.relative_to(one).as_posix(): path.read_bytes() for path in one.rglob("*") if path.is_file()}
    first = hub.make("owner/name").edit(**files)
    hub.repos["owner/name"].edit(**{"manifest.json": b"{}"})
    fetched = read_previous(f"hf://datasets/owner/name@{first}")
    assert (fetched.records, fetched.parameters) == (previous.records, previous.parameters)
    assert fetched.parent == previous.parent.model_copy(update={"name": "name"})
    curate(memory_source(rows), tmp_path / "three", options, previous=fetched, jobs=1)
    for table in ("decisions.parquet", "networks.parquet"):
        assert (tmp_path / "two" / table).read_bytes() == (tmp_path / "three" / table).read_bytes()
    with pytest.raises(UserError, match="owner/name: its manifest"):
        read_previous("hf://datasets/owner/name")
    with pytest.raises(UserError, match="owner/none: "):
        read_previous("hf://datasets/owner/none")
