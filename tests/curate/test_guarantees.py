"""The guarantees of the strict profile on generated corpora, each against a brute-force check of its own."""

import hashlib
import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.compute.outcome import STAGES, count_decisions
from curate.kinds import verify
from curate.model.corpus import Features, code_features
from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from manifests.folders.manifest import write_manifest
from tests.curate.conftest import MemorySource, network

Row = dict[str, Any]

INVALID = (
    "def broken(:\n    pass\n",
    "def broken(:\n    pass  # again\n",
    "class Net(nn.Module):\n\tpass\n        pass\n",
    "x = 1\0",
    "# nothing but a comment\n",
    "\n# nothing but another\n",
    "x = " + "(" * 500,
)


@dataclass(frozen=True)
class View:
    """A code as the brute-force checks see it."""

    id: str
    features: Features
    shingles: frozenset[int]
    elements: frozenset[int]


def jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    return len(a & b) / len(a | b) if a and b else 0.0


class Pool:
    """A few hundred small networks: chains of small changes, the same layers in another order, the same network in
    other words; and codes that cannot be used. Examples draw from it, so that features are worked out once."""

    def __init__(self) -> None:
        dice = random.Random(7)
        self.codes: list[str] = []
        for start in range(4):
            blocks = [dice.randrange(12) for _ in range((12, 20, 30, 40)[start])]
            chain = [blocks]
            for step in range(6):
                changed = list(chain[-1])
                changed[(step * 7) % len(changed)] = (changed[(step * 7) % len(changed)] + 1 + step) % 12
                chain.append(changed)
            shuffled = dice.sample(blocks, len(blocks))
            for place, item in enumerate([*chain, shuffled, blocks[: len(blocks) // 2]]):
                self.codes.append(network(item))
                self.codes.append(network(item, comment="the same", docstring="as before"))
                self.codes.append(network(item, width=(16, 96, 200)[place % 3], variable="h"))
                self.codes.append(network(item, name="UNet" if place % 2 else "VGG", glue=False))
                if place % 3 == 0:
                    extra = "\ndef load():\n    return torch.hub.load('pytorch/vision', 'resnet18')\n\nnet = load()\n"
                    self.codes.append(network(item, extra=extra))
        bodies = ("x = 1", "x = 2", "y = 'text'", "pass")  # no layers: empty fingerprints
        self.codes += [f"class Net(Module):\n    {body}\n" for body in bodies]
        self.codes += INVALID
        assert len(set(self.codes)) == len(self.codes)
        self.views: dict[str, View] = {}
        for code in self.codes:
            found = code_features(code)
            if isinstance(found, Features):
                shingles, elements = frozenset(found.shingles.tolist()), frozenset(found.elements.tolist())
                self.views[code] = View(hashlib.sha256(code.encode()).hexdigest(), found, shingles, elements)
        assert set(self.codes) - set(self.views) == set(INVALID)
        self._known: dict[tuple[str, str], tuple[float, float]] = {}

    def similarities(self, a: str, b: str) -> tuple[float, float]:
        """Lexical and structural similarity; equal fingerprints of networks with layers count as 1."""
        key = (a, b) if a < b else (b, a)
        if key not in self._known:
            first, second = self.views[a], self.views[b]
            structural = jaccard(first.elements, second.elements)
            if first.features.fingerprint == second.features.fingerprint and first.elements:
                assert structural == 1.0
            self._known[key] = jaccard(first.shingles, second.shingles), structural
        return self._known[key]

    def near(self, a: str, b: str, options: Any) -> bool:
        lexical, structural = self.similarities(a, b)
        same = self.views[a].features.tree == self.views[b].features.tree
        return same or lexical >= options.lexical_threshold or structural >= options.structural_threshold

    def tied(self, a: str, b: str) -> bool:
        """Whether two codes must be in one split."""
        same = self.views[a].features.fingerprint == self.views[b].features.fingerprint
        return same or self.similarities(a, b)[0] >= 0.70


@pytest.fixture(scope="session")
def pool(curator_cache: object) -> Pool:
    return Pool()


POOL_SIZE = 4 * 39 + 4 + len(INVALID)

NETS = ["ga-1", "ga-2", "ga", "alt-1", "alt-nn-2", "ast-x", "ast-Y", "FractalNet-1", "FractalNet-2", "Fractal", "rag-ü"]

ROW = st.fixed_dictionaries(
    {
        "nn": st.sampled_from(NETS),
        "code": st.one_of(st.integers(0, 11), st.integers(40, 80), st.integers(0, POOL_SIZE)),
        "task": st.sampled_from(["img-classification", None]),
        "dataset": st.sampled_from(["cifar-10", "cifar-10", "mnist"]),
        "metric": st.just("acc"),
        "epoch": st.sampled_from([1, 1, 5, None]),
        "accuracy": st.sampled_from([None, 0.1, 0.5, 0.5, 0.9, 0.99]),
        "duration": st.sampled_from([None, 1.0, 2.0]),
        "prm": st.sampled_from([None, '{"lr": 0.1}', '{"lr": 1}']),
    }
)

ROWS = st.lists(ROW, min_size=1, max_size=6) | st.lists(ROW, min_size=12, max_size=30)

OPTIONS = st.fixed_dictionaries(
    {
        "lexical_threshold": st.sampled_from([0.9, 0.9, 0.7, 0.8, 0.95, 1.0]),
        "structural_threshold": st.sampled_from([0.95, 0.9, 1.0]),
        "prefer": st.sampled_from([(), ("FractalNet",), ("ast", "alt-nn")]),
        "seed": st.sampled_from([42, 7]),
        "upweight": st.just((("FractalNet", 3.0), ("ga-1", 0.5), ("ga", 2.0))),
    }
)

SUPPORT = st.fixed_dictionaries(
    {
        "min_per_prefix": st.sampled_from([0, 0, 1, 2]),
        "topup_prefix": st.sampled_from([(), ("ga",), ("ast",), ("alt",), ("FractalNet",), ("ast", "alt"), ("none",)]),
        "topup_per_prefix": st.sampled_from([2, 4]),
    }
)


def with_codes(drawn: Sequence[Row], pool: Pool) -> list[Row]:
    """Drawn rows with the text of their code; one without code says why, as a source would."""
    assert len(pool.codes) == POOL_SIZE
    rows = []
    for row in drawn:
        code = None if row["code"] == POOL_SIZE else pool.codes[row["code"]]
        rows.append({**row, "nn_code": code, "problem": "nn_code is missing" if code is None else None})
    return rows


def starts_with(name: str, prefix: str) -> bool:
    return name.lower().split("-")[: prefix.count("-") + 1] == prefix.lower().split("-")


def usable(rows: Sequence[Row], pool: Pool) -> list[Row]:
    return [row for row in rows if row["nn_code"] in pool.views]


def percentile(row: Row, rows: Sequence[Row]) -> tuple[float, float] | None:
    """The share of the networks of the same benchmark that this row's accuracy beats, ties counted half; its weight."""
    if row["accuracy"] is None:
        return None
    best: dict[str, float] = {}
    for other in rows:
        same = all(other[key] == row[key] for key in ("task", "dataset", "metric", "epoch"))
        if same and other["accuracy"] is not None:
            best[other["nn"]] = max(best.get(other["nn"], -math.inf), other["accuracy"])
    below = sum(value < row["accuracy"] for value in best.values())
    rank = (below + sum(value == row["accuracy"] for value in best.values()) / 2) / len(best)
    return rank, len(best) / (len(best) + 10)


def standing(row: Row, rows: Sequence[Row]) -> float | None:
    """The percentile, drawn to the middle where the field is small."""
    found = percentile(row, rows)
    return None if found is None else 0.5 + found[1] * (found[0] - 0.5)


def score(code: str, rows: Sequence[Row]) -> float | None:
    """The mean over data sets of the mean over epochs of a code's best percentiles, with one more median one."""
    best: dict[tuple[Any, ...], dict[Any, tuple[float, float]]] = {}
    for row in rows:
        if row["nn_code"] == code and (found := percentile(row, rows)) is not None:
            of_set = best.setdefault((row["task"], row["dataset"], row["metric"]), {})
            of_set[row["epoch"]] = max(of_set.get(row["epoch"], found), found)
    if not best:
        return None
    weights = [max(weight for _, weight in of_set.values()) for of_set in best.values()]
    means = [sum(p * w for p, w in s.values()) / sum(w for _, w in s.values()) for s in best.values()]
    return (sum(m * w for m, w in zip(means, weights, strict=True)) + 0.5) / (sum(weights) + 1)


def best_first(rows: Sequence[Row], pool: Pool, options: Any) -> dict[str, str]:
    """Distinct codes of the usable rows, best first: preferred prefix, from scratch, score, name, id. Returns: names."""
    known = usable(rows, pool)

    def preference(name: str) -> int:
        return next((i for i, p in enumerate(options.prefer) if starts_with(name, p)), len(options.prefer))

    shown: dict[str, tuple[Any, ...]] = {}
    for row in known:
        mark = standing(row, known)
        key = (preference(row["nn"]), -mark if mark is not None else 1.0, row["nn"])
        shown[row["nn_code"]] = min(shown.get(row["nn_code"], key), key)

    def rank(code: str) -> tuple[Any, ...]:
        (preferred, _, name), mark = shown[code], score(code, known)
        minus_score = 1.0 if mark is None else -round(mark, 12)
        return preferred, bool(pool.views[code].features.pretrained), minus_score, name, pool.views[code].id

    return {code: shown[code][2] for code in sorted(shown, key=rank)}


def greedy(order: Iterable[str], pool: Pool, options: Any) -> list[str]:
    kept: list[str] = []
    for code in order:
        if not any(pool.near(code, other, options) for other in kept):
            kept.append(code)
    return kept


def check_independent_and_maximal(result: Any, pool: Pool) -> None:
    """Guarantees 1 and 2: no near pair kept; every removal by a kept witness with the similarity that is told."""
    kept = result.kept
    for a, b in itertools.combinations(kept, 2):
        assert not pool.near(a, b, result.options), "two kept records are near-duplicates"
    order = best_first(result.rows, pool, result.options)
    assert set(kept) <= set(order)
    for code in set(order) - set(kept):
        assert any(pool.near(code, other, result.options) for other in kept), "removed without need"
    threshold = {
        "lexical": result.options.lexical_threshold,
        "structural": result.options.structural_threshold,
        "exact": 1.0,
    }
    for row, decision in zip(result.rows, result.decisions, strict=True):
        assert decision.reason
        assert decision.kept == (decision.stage is None)
        if decision.stage in ("invalid", "filter"):
            assert decision.canonical is None
            assert decision.similarity is None
            continue
        canonical = result.canonical(decision)
        assert canonical in kept
        if decision.kept:
            assert (canonical, decision.similarity) == (row["nn_code"], 1.0)
        elif decision.stage == "exact":
            same = pool.views[row["nn_code"]].features.tree == pool.views[canonical].features.tree
            assert same
            assert decision.similarity == 1.0
        elif decision.stage != "repeat":
            tree = pool.views[row["nn_code"]].features.tree
            assert tree not in {pool.views[other].features.tree for other in kept}, "equal trees are `exact`"
            found = pool.similarities(row["nn_code"], canonical)[decision.stage == "structural"]
            assert decision.similarity == found
            assert found >= threshold[decision.stage]


def check_clusters(result: Any, pool: Pool) -> None:
    """A cluster is a connected component of what is kept, named by its smallest id."""
    group = {code: {code} for code in result.kept}
    for a, b in itertools.combinations(result.kept, 2):
        if pool.tied(a, b):
            joined = group[a] | group[b]
            group |= dict.fromkeys(joined, joined)
    for code, members in group.items():
        smallest = min(pool.views[other].id for other in members)
        assert result.outcome.clusters[result.number(code)] == smallest[:16]


def check_no_leakage(result: Any, pool: Pool) -> None:
    """Guarantee 4: no code is near to one of another split, kept or not; one without a split is near to two."""
    whole, number = result.outcome.whole, result.number
    codes = sorted({row["nn_code"] for row in usable(result.rows, pool)})
    assert set(result.outcome.rows) == {number(code) for code in codes}
    assert all(whole.splits[number(code)] == result.split_of(code) for code in result.kept)
    canonical_of = {
        row["nn_code"]: result.canonical(decision)
        for row, decision in zip(result.rows, result.decisions, strict=True)
        if decision.stage not in ("invalid", "filter")
    }
    near: dict[str, set[str]] = {code: set() for code in codes}
    for a, b in itertools.combinations(codes, 2):
        if pool.tied(a, b) or b == canonical_of.get(a) or a == canonical_of.get(b):
            near[a].add(b)
            near[b].add(a)
    group = {code: whole.groups.get(number(code)) for code in codes}
    for code in codes:
        splits = {whole.splits.get(number(other)) for other in near[code]} - {None}
        if group[code] is None:
            assert code not in result.kept
            assert number(code) not in whole.splits
            assert len(splits) > 1, "a code without a split is near to two"
            continue
        assert splits <= {whole.splits[number(code)]}, "leakage"
        assert {group[other] for other in near[code]} <= {group[code], None}
        smallest = min(pool.views[other].id for other in codes if group[other] == group[code])
        assert group[code] == smallest[:16]


def check_every_row_decided(result: Any, pool: Pool) -> None:
    """Guarantee 6: each row once, and the counts are those of the decisions."""
    assert len(result.decisions) == len(result.rows)
    stages = Counter(decision.stage or "kept" for decision in result.decisions)
    counts = count_decisions(result.corpus, result.outcome)
    assert counts["rows"] == {"input": len(result.rows), **{name: stages[name] for name in ("kept", *STAGES)}}
    assert stages["kept"] == len(result.kept) == len(set(result.kept)) == sum(counts["splits"].values())
    networks = {(row["nn"], row["nn_code"]) for row in usable(result.rows, pool)}
    assert counts["networks"] == len(networks)
    assert counts["codes"] == len({code for _, code in networks})
    assert sum(item["kept"] for item in counts["prefixes"].values()) == len(result.kept)
    assert sum(item["kept"] for item in counts["families"].values()) == len(result.kept)
    speaking: Counter[tuple[str, str]] = Counter()
    for row, decision in zip(result.rows, result.decisions, strict=True):
        invalid = row["nn_code"] not in pool.views
        assert (decision.stage == "invalid") == invalid
        if decision.stage not in ("invalid", "filter", "repeat"):
            speaking[row["nn"], row["nn_code"]] += 1
    assert set(speaking.values()) <= {1}, "two rows speak for one network"


def check_all(result: Any, pool: Pool) -> None:
    check_independent_and_maximal(result, pool)
    check_clusters(result, pool)
    check_no_leakage(result, pool)
    check_every_row_decided(result, pool)


@settings(max_examples=50)
@given(drawn=ROWS, chosen=OPTIONS)
def test_best_first_maximal_independent_set(pool: Pool, curated: Any, drawn: list[Row], chosen: dict[str, Any]) -> None:
    result = curated(with_codes(drawn, pool), **chosen)
    check_all(result, pool)
    order = best_first(result.rows, pool, result.options)
    assert result.kept == greedy(order, pool, result.options)
    place = {code: number for number, code in enumerate(order)}
    for row, decision in zip(result.rows, result.decisions, strict=True):
        if decision.stage in ("exact", "lexical", "structural"):
            assert place[result.canonical(decision)] <= place[row["nn_code"]], "removed by one that it outranks"
    for code, name in zip(result.kept, result.kept_names(), strict=True):
        known = usable(result.rows, pool)
        assert result.outcome.scores[result.number(code)] == pytest.approx(score(code, known))
        factor = next((factor for prefix, factor in chosen["upweight"] if starts_with(name, prefix)), 1.0)
        assert result.outcome.weights[result.number(code)] == factor
    sets = {pool.views[code].shingles for code in order}
    near = [a for a, b in itertools.combinations(sets, 2) if jaccard(a, b) >= result.options.lexical_threshold]
    stated = result.outcome.details["lsh"]
    assert stated["pairs"] == stated["found"] == len(near)
    assert stated["recall"] == 1.0
    assert stated["sets_asked"] == stated["sets"] == len(sets)


def test_the_pool_holds_every_kind_of_relation(pool: Pool) -> None:
    """Else the properties above would be true of nothing."""
    pairs = [pool.similarities(a, b) for a, b in itertools.combinations(pool.views, 2)]
    lexical = [value for value, _ in pairs]
    assert min(lexical) < 0.6
    for low, high in ((0.7, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.0), (1.0, 1.1)):
        assert sum(low <= value < high for value in lexical) > 20, (low, high)
    assert sum(first < 0.7 and second >= 0.95 for first, second in pairs) > 5
    assert sum(bool(view.features.pretrained) for view in pool.views.values()) > 5
    assert sum(not view.elements for view in pool.views.values()) == 4


@given(drawn=ROWS, chosen=OPTIONS, support=SUPPORT, dice=st.randoms(use_true_random=False))
def test_order_does_not_matter(
    pool: Pool, curated: Any, drawn: list[Row], chosen: Any, support: Any, dice: random.Random
) -> None:
    rows = with_codes(drawn, pool)
    places = list(range(len(rows)))
    dice.shuffle(places)
    one = curated(rows, **chosen, **support)
    two = curated([rows[place] for place in places], batch_rows=3, **chosen, **support)
    with pytest.MonkeyPatch.context() as patch:  # where the exact join would take too long, LSH finds the same groups
        patch.setattr("lemur_core.similarity.join.MAX_SETS", 2)
        large = curated(two.rows, **chosen, **support)
    assert (large.kept, large.outcome.whole.splits) == (two.kept, two.outcome.whole.splits)
    assert one.kept == two.kept
    assert one.outcome.notes == two.outcome.notes
    assert one.outcome.details == two.outcome.details
    for code in one.kept:
        assert one.kept_row(code) == two.kept_row(code)
        for name in ("splits", "clusters", "scores", "weights"):
            mine, theirs = getattr(one.outcome, name), getattr(two.outcome, name)
            assert mine[one.number(code)] == theirs[two.number(code)], name

    def fates(result: Any) -> list[str]:
        return sorted(
            repr((sorted(row.items(), key=str), d.kept, d.stage, result.canonical(d), d.similarity, d.rescued))
            + re.sub(r"see row \d+", "see row", d.reason)
            for row, d in zip(result.rows, result.decisions, strict=True)
        )

    assert fates(one) == fates(two)


def test_a_corpus_too_large_for_an_exact_join_is_split_alike(
    curated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains of small changes, from one group to another, whose ends may be kept in different splits."""
    dice = random.Random(11)
    rows, blocks = [], [dice.randrange(12) for _ in range(20)]
    for step in range(120):
        blocks[(step * 3) % 20] = (blocks[(step * 3) % 20] + 1 + step % 5) % 12
        rows.append({"nn": f"c-{step}", "nn_code": network(blocks), "accuracy": dice.random(), "dataset": "d"})
    whole = {seed: curated(rows, graph="off", seed=seed, lexical_threshold=0.75).outcome.whole for seed in range(4)}
    assert all({*whole[seed].splits.values()} > {"train"} for seed in range(4))
    monkeypatch.setattr("lemur_core.similarity.join.MAX_SETS", 7)
    for seed, expected in whole.items():
        assert curated(rows, graph="off", seed=seed, lexical_threshold=0.75).outcome.whole.splits == expected.splits


@pytest.mark.slow
@settings(max_examples=50)
@given(drawn=ROWS, chosen=OPTIONS, support=SUPPORT)
def test_support_keeps_the_guarantees(pool: Pool, curated: Any, drawn: list[Row], chosen: Any, support: Any) -> None:
    rows = with_codes(drawn, pool)
    result, plain = curated(rows, **chosen, **support), curated(rows, **chosen)
    check_all(result, pool)
    order = best_first(rows, pool, result.options)
    asked = [(prefix, support["topup_per_prefix"]) for prefix in support["topup_prefix"]]
    if support["min_per_prefix"]:
        named = chosen["prefer"] or {row["nn"].split("-")[0] for row in usable(rows, pool)}
        asked += [(prefix, support["min_per_prefix"]) for prefix in sorted(named)]
    for prefix, minimum in asked:
        label, group = f"prefix {prefix}:", [code for code, name in order.items() if starts_with(name, prefix)]
        kept = sum(code in group for code in result.kept)
        note = [note for note in result.outcome.notes if label in note and f"{minimum} required" in note]
        told = any(f"{label} {kept} kept" in text for text in note)
        assert kept >= minimum or told or not group, (label, kept, minimum, result.outcome.notes)
        if len(asked) == 1:  # else other groups may need what stands in the way
            own = [code for code in plain.kept if code in group]
            possible = greedy([*own, *(code for code in group if code not in own)], pool, result.options)
            assert kept >= min(minimum, len(possible)), "more of the group could have been kept"
    for row, decision in zip(rows, result.decisions, strict=True):
        if decision.rescued is not None:
            assert decision.kept
            assert row["nn_code"] not in plain.kept
            assert decision.reason.startswith("kept for the support")
    if not asked:
        assert result.kept == plain.kept


def test_networks_without_layers(pool: Pool, curated: Any) -> None:
    """Codes that call nothing have nothing to compare by structure; only their tokens count."""
    codes = [*pool.codes[-len(INVALID) - 4 :][1:4], "x = 1", "import os"]
    result = curated([{"nn": f"n-{place}", "nn_code": code} for place, code in enumerate(codes)])
    assert [decision.reason for decision in result.decisions[3:]] == ["defines no nn.Module"] * 2
    assert len(result.kept) == 3
    assert len(set(result.outcome.splits.values())) == 1  # but their (empty) fingerprints are equal


def test_a_top_up_takes_what_is_farthest(curated: Callable[..., Any]) -> None:
    """Of two removed ones that would raise a prefix: the better scored is like its kept one, the other is not."""
    kept = [n % 12 for n in range(20)]
    near, far = [*kept[:10], *[0, 1, 2] * 4], [9, 10, 11, 3] * 5
    codes = {"ga-0": network(kept), "alt-1": network(near), "alt-2": network(far)}
    codes |= {"ga-1": network(near, variable="h"), "ga-2": network(far, variable="h")}
    facts = {"task": "t", "dataset": "d", "metric": "acc", "epoch": 1}
    rows = [{"nn": nn, "nn_code": codes[nn], "accuracy": 0.9 - n / 10, **facts} for n, nn in enumerate(codes)]
    assert curated(rows, prefer=("alt",)).kept_names() == ["alt-1", "alt-2", "ga-0"]
    topped_up = curated(rows, prefer=("alt",), topup_prefix=("ga",), topup_per_prefix=2)
    assert set(topped_up.kept_names()) == {"alt-1", "ga-0", "ga-2"}
    assert [decision.rescued for decision in topped_up.decisions] == [None, None, None, None, "topup"]


def test_what_the_fingerprints_do_not_see_is_told(curated: Any) -> None:
    """Another activation, width or depth looks the same to the published tokens. The reason says so."""
    relu = network([0, 1, 4] * 2)
    for other in (relu.replace("torch.relu(", "torch.gelu("), network([0, 1, 4] * 3)):
        abstract = curated([{"nn": "a-1", "nn_code": relu}, {"nn": "a-2", "nn_code": other}])
        assert abstract.kept_names() == ["a-1"]
        assert abstract.decisions[1].reason == "same shingles as a-1; names, numbers or repetitions differ"


def test_verify_sees_each_broken_law(tmp_path: Path) -> None:
    """Of folders that were made with other thresholds than they state, or than splits are made with."""
    codes = [network(range(12)), network([*range(12), 0]), network([6, 8, 4])]
    rows = [{"nn": f"n-{number}", "nn_code": code} for number, code in enumerate(codes)]

    for law, made, stated, leak in (
        ("near duplicates", 1.0, 0.7, 0.7),
        ("witnesses", 0.7, 1.0, 0.7),
        ("leaks", 1.0, 1.0, 1.0),
    ):
        options = CurateOptions(graph="off", lexical_threshold=made, structural_threshold=1.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("curate.model.splits.LEAK_THRESHOLD", leak)
            manifest = curate(MemorySource(rows), tmp_path / law, options, jobs=1)
        parameters = manifest.parameters | {"lexical_threshold": stated}
        write_manifest(tmp_path / law, manifest.model_copy(update={"parameters": parameters}))
        wrong = {check.name for check in verify(tmp_path / law, jobs=1) if not check.ok}
        assert wrong & {"near duplicates", "witnesses", "leaks"} == {law}
