"""Growth: what a snapshot kept stays kept and keeps its split; what is new joins no two published splits."""

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

Row = dict[str, Any]
CHAINS, STEPS = 3, 10


@pytest.fixture(scope="module")
def codes(network: Callable[..., str], warm: Callable[..., None]) -> list[str]:
    """Three chains of networks; each step changes three of thirty blocks, so that some are near, and some tied."""
    dice = random.Random(11)
    made = []
    for _ in range(CHAINS):
        blocks = [dice.randrange(12) for _ in range(30)]
        for _ in range(STEPS):
            for place in dice.sample(range(30), 3):
                blocks[place] = dice.randrange(12)
            made.append(network(blocks))
    warm(made)
    return made


def rows_of(codes: list[str], picked: list[int]) -> list[Row]:
    return [{"nn": f"n-{place:02}", "nn_code": codes[place]} for place in picked]


def publish(result: Any) -> Previous:
    """What was kept, as the next run reads it."""
    corpus, outcome = result.corpus, result.outcome
    return Previous(
        {corpus.ids[index]: PublishedRecord("n", outcome.splits[index]) for index in outcome.kept}, {}, None
    )


def tied(result: Any, one: int, other: int) -> bool:
    features = result.corpus.features
    sets = (features.shingles(int(features.shingle_set[index])) for index in (one, other))
    return bool(features.fingerprint[one] == features.fingerprint[other]) or jaccard(*sets) >= 0.70


PICKED = st.lists(st.integers(0, CHAINS * STEPS - 1), min_size=1, max_size=CHAINS * STEPS, unique=True)


@given(first=PICKED, second=PICKED, seed=st.integers(0, 3))
def test_growth_keeps_its_word(codes: list[str], curated: Any, first: list[int], second: list[int], seed: int) -> None:
    before, plain = curated(rows_of(codes, first), seed=seed), curated(rows_of(codes, second), seed=seed)
    previous, corpus = publish(before), plain.corpus
    outcome = curate_strict(corpus, CurateOptions(seed=seed), previous=previous)
    there = previous.find(corpus)
    assert there.keys() <= set(outcome.kept), "a published record is gone"
    assert {index: outcome.splits[index] for index in there} == there
    gone = {item["id"]: item["reason"] for item in outcome.details["previous"]["gone"]}
    assert gone == dict.fromkeys(previous.records.keys() - set(corpus.ids), "not in the source")
    assert outcome.details["previous"]["kept"] == len(there)
    assert outcome.details["inherited"] == [], "the rules are those of before"
    for place, one in enumerate(outcome.kept):
        for other in outcome.kept[:place]:
            assert not tied(plain, one, other) or outcome.splits[one] == outcome.splits[other], "a leak"
    for index, decision in enumerate(outcome.decisions):  # one row for each code
        if index in there:
            assert decision.reason == STAYS
        if decision.stage is not None:
            assert decision.canonical in outcome.kept
        if decision.stage == "leak":
            splits = {there_split for other, there_split in outcome.splits.items() if tied(plain, index, other)}
            assert len(splits) > 1, "not kept for no reason"
            assert tied(plain, index, decision.canonical)
            assert decision.similarity >= 0.70
    if not set(first) & set(second):
        assert outcome.kept == plain.outcome.kept
        assert outcome.splits == plain.outcome.splits


def test_two_steps_and_one_differ_by_what_the_order_allows(codes: list[str], curated: Any) -> None:
    """What outranks a published code comes too late, and what is near to two splits; nothing else is lost."""
    half, whole = curated(rows_of(codes, list(range(0, 30, 2)))), curated(rows_of(codes, list(range(30))))
    outcome = curate_strict(whole.corpus, CurateOptions(), previous=publish(half))
    stages = [decision.stage for decision in outcome.decisions]
    assert set(stages) <= {None, "exact", "lexical", "structural", "leak"}
    assert len(outcome.kept) + stages.count("leak") >= len(whole.outcome.kept) - len(half.outcome.kept)


def test_a_code_between_two_splits_is_a_leak(codes: list[str], curated: Any, told: Any) -> None:
    """Twins in eval mode across the splits of an older release stay and are listed; what joins them is not kept."""
    far = [codes[0], codes[STEPS], codes[2 * STEPS]]
    result = curated([{"nn": f"n{place}", "nn_code": code} for place, code in enumerate(far)])
    corpus = result.corpus
    previous = Previous(
        {corpus.ids[0]: PublishedRecord("n0", "train"), corpus.ids[1]: PublishedRecord("n1", "test")}, {}, None
    )
    apart = {code: {"graph": code, "graph_widths": code, "graph_eval": code} for code in far}
    joined = apart | {far[2]: {"graph": "c", "graph_widths": far[0], "graph_eval": far[1]}}
    outcome = curate_strict(corpus, CurateOptions(), told(corpus, joined.__getitem__), previous)
    leak = outcome.decisions[2]
    assert (leak.stage, leak.similarity) == ("leak", 1.0)
    assert leak.canonical in (0, 1)
    assert leak.reason.startswith("would join two published splits: its structure or computation is that of n")
    assert outcome.whole.splits.get(2) is None

    twins = {code: {**of, "graph_eval": "same"} for code, of in apart.items()}
    outcome = curate_strict(corpus, CurateOptions(), told(corpus, twins.__getitem__), previous)
    assert (outcome.splits[0], outcome.splits[1]) == ("train", "test")
    assert [item["stage"] for item in outcome.details["inherited"]] == ["leak"]
    assert outcome.decisions[2].stage == "leak", "it is the twin of both"


def test_the_folder(codes: list[str], memory_source: Any, tmp_path: Path) -> None:
    """From one folder to the next, with a network that has gone; and what must be the same."""
    options = CurateOptions(graph="off")
    curate(memory_source(rows_of(codes, list(range(20)))), tmp_path / "one", options, jobs=1)
    previous = read_previous(str(tmp_path / "one"))
    name = min(record.nn for record in previous.records.values())
    rows = rows_of(codes, [place for place in range(30) if f"n-{place:02}" != name])
    with pytest.raises(UserError, match=r"--previous: it was made with lexical_threshold 0\.9, this run has 0\.8"):
        curate(
            memory_source(rows), tmp_path / "two", CurateOptions(graph="off", lexical_threshold=0.8), previous=previous
        )
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
