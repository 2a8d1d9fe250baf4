"""Deltas: the guarantees over the union on generated corpora, each against a brute-force check, and each outcome once."""

import hashlib
import itertools
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import curate.model.splits
import curate.run.pipeline
from curate.folder.explain import explain
from curate.folder.report import write_report
from curate.folder.verify import verify
from curate.model.features import Features, code_features
from curate.model.options import CurateOptions
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.manifest import read_manifest
from manifests.folders.tables import read_rows
from manifests.records import NetworkRow
from tests.builders.suites import table

Row = dict[str, Any]


class Pool:
    """Networks in chains of small changes, so that many are near each other at several distances."""

    def __init__(self, network: Callable[..., str]) -> None:
        dice = random.Random(3)
        self.codes: list[str] = []
        for size in (10, 14, 20, 28, 40):
            blocks = [dice.randrange(12) for _ in range(size)]
            for step in range(9):
                self.codes.append(network(blocks))
                self.codes.append(network(blocks, comment="again", docstring="the same"))
                self.codes.append(network(dice.sample(blocks, size)))  # the same layers in another order
                blocks = list(blocks)
                for change in range(1 + size // 12):
                    place = (step * 5 + change) % size
                    blocks[place] = (blocks[place] + 1 + step) % 12
        self.codes += ["x = 1\n", "x = 2\n", "pass\n", "def broken(:\n"]
        self.codes = list(dict.fromkeys(self.codes))
        self.features = {code: found for code in self.codes if isinstance(found := code_features(code), Features)}
        self.by_id = {hashlib.sha256(code.encode()).hexdigest(): code for code in self.codes}
        self._shingles = {code: frozenset(found.shingles.tolist()) for code, found in self.features.items()}
        self._elements = {code: frozenset(found.elements.tolist()) for code, found in self.features.items()}

    @cache  # noqa: B019 (one pool for all tests)
    def lexical(self, one: str, other: str) -> float:
        return jaccard(self._shingles[one], self._shingles[other])

    @cache  # noqa: B019
    def structural(self, one: str, other: str) -> float:
        return jaccard(self._elements[one], self._elements[other])

    def same(self, view: str, one: str, other: str) -> bool:
        return bool(getattr(self.features[one], view) == getattr(self.features[other], view))

    def together(self, one: str, other: str) -> bool:
        """Whether two codes must be in one split."""
        return self.lexical(one, other) >= 0.70 or self.same("fingerprint", one, other)

    def near(self, one: str, other: str) -> bool:
        """Whether two codes are near-duplicates."""
        return self.same("tree", one, other) or self.lexical(one, other) >= 0.9 or self.structural(one, other) >= 0.95


def jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    return len(a & b) / len(a | b) if a and b else 0.0


@pytest.fixture(scope="session")
def pool(network: Callable[..., str], warm: Callable[..., None], curator_cache: object) -> Pool:
    made = Pool(network)
    warm(made.codes)
    return made


Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(memory_source: Any, warm: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """`make(rows, *against)`: the folder of a curation with graphs off, without a report."""
    root = tmp_path_factory.mktemp("deltas")
    numbers = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curate.run.pipeline, "write_report", lambda *_: None)
        patch.setattr(
            curate.model.splits, "SPLIT_RATIOS", {"train": 0.4, "validation": 0.3, "test": 0.3}
        )  # of a few records

        def run(rows: Sequence[Row], *against: Path, **chosen: Any) -> Path:
            out = root / f"folder-{next(numbers)}"
            options = CurateOptions(**{"graph": "off", **chosen})
            store = warm((row["nn_code"] for row in rows), options.tokens)
            curate.run.pipeline.curate(memory_source(rows), out, options, against=against, jobs=1, store=store)
            return out

        yield run


def row(pool: Pool, place: int, accuracy: float, nn: str = "") -> Row:
    code = pool.codes[place]
    benchmark = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1}
    problem = {"problem": None}
    return {"nn": nn or f"net-{place}", "nn_code": code, "accuracy": accuracy, **benchmark, **problem}


def records_of(folder: Path) -> list[Row]:
    return [row for path in sorted(folder.glob("data/records/*.parquet")) for row in pq.read_table(path).to_pylist()]


def decisions_of(folder: Path) -> list[Row]:
    found: list[Row] = pq.read_table(folder / "decisions.parquet").to_pylist()
    return found


def digests_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): sha256_file(path) for path in folder.rglob("*") if path.is_file()}


ROWS = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 999)), min_size=6, max_size=30)


@pytest.mark.slow
@settings(max_examples=30)
@given(parts=st.lists(ROWS, min_size=2, max_size=4), seed=st.integers(0, 3), dice=st.randoms(use_true_random=False))
def test_the_guarantees_hold_over_the_union(
    pool: Pool, make: Make, parts: list[list[tuple[int, int]]], seed: int, dice: random.Random
) -> None:
    folders: list[Path] = []
    for drawn in parts:
        rows = [row(pool, place % len(pool.codes), accuracy / 1000) for place, accuracy in drawn]
        before = [digests_of(folder) for folder in folders]
        made = make(rows, *folders, seed=seed)
        assert [digests_of(folder) for folder in folders] == before
        if folders:
            check_union(pool, folders, made)
            failed = [check for check in verify(made, against=folders, jobs=1) if not check.ok]
            assert not failed
            dice.shuffle(rows)
            again = make(rows, *reversed(folders), seed=seed)
            assert content(again) == content(made)
            shutil.rmtree(again)
        folders.append(made)
    for folder in folders:
        shutil.rmtree(folder)


def content(folder: Path) -> tuple[list[Row], list[tuple[Any, ...]]]:
    """Records, and decisions without what tells their place in the input, in an order of their own."""
    columns = ("id", "nn", "kept", "stage", "canonical", "similarity")
    decided = [tuple(decision[name] for name in columns) for decision in decisions_of(folder)]
    return sorted(records_of(folder), key=lambda record: record["id"]), sorted(decided, key=repr)


def check_union(pool: Pool, folders: Sequence[Path], made: Path) -> None:
    published = {record["id"]: record for folder in folders for record in records_of(folder)}
    removed = {
        decision["id"]: (decision["stage"], decision["canonical"], decision["similarity"])
        for folder in reversed(folders)
        for decision in reversed(decisions_of(folder))
        if decision["stage"] in ("exact", "lexical", "structural", "leak") and decision["canonical"] != decision["id"]
    }
    new = {record["id"]: record for record in records_of(made)}
    assert not new.keys() & published.keys()
    union = {id_: (pool.by_id[id_], record) for id_, record in (published | new).items()}
    for id_, record in new.items():
        code = pool.by_id[id_]
        for other_id, (other, there) in union.items():
            if other_id != id_:
                assert not pool.near(code, other)
                assert not pool.together(code, other) or there["split"] == record["split"]
    together = [(a, b) for a, b in itertools.combinations(union.values(), 2) if pool.together(a[0], b[0])]
    keys = keys_of(made)
    assert all(keys(one[1]) == keys(other[1]) for one, other in together)
    score = {record["id"]: record["score"] for record in new.values()}
    score |= {removal["id"]: removal["score"] for removal in pq.read_table(made / "networks.parquet").to_pylist()}
    for decision in decisions_of(made):
        id_, stage, canonical = decision["id"], decision["stage"], decision["canonical"]
        assert (stage is None) == decision["kept"]
        if stage in (None, "invalid", "repeat"):
            continue
        if id_ in published:
            assert (stage, canonical, decision["similarity"]) == ("exact", id_, 1.0)
        elif id_ in removed:
            assert (stage, canonical, decision["similarity"]) == removed[id_]
        elif stage == "leak":
            near = {there["split"] for other, there in union.values() if pool.together(pool.by_id[id_], other)}
            assert len(near) > 1
            assert canonical is None
        else:
            code, other = pool.by_id[id_], union[canonical][0]
            found = {
                "exact": float(pool.same("tree", code, other)),
                "lexical": pool.lexical(code, other),
                "structural": pool.structural(code, other),
            }
            assert decision["similarity"] == pytest.approx(found[stage])
            assert found[stage] >= {"exact": 1.0, "lexical": 0.9, "structural": 0.95}[stage]
            assert canonical in published or score[canonical] >= score[id_]
    stats = pq.read_table(made / "data" / "stats", columns=["id"]).column("id").to_pylist()
    usable = [decision["id"] for decision in decisions_of(made) if decision["stage"] != "invalid"]
    assert sorted(stats) == sorted(usable)


def keys_of(last: Path) -> Callable[[Row], str]:
    """Tell the key of a record's group now, by what the last folder of a chain states."""
    path = last / "clusters.parquet"
    joined = {row["cluster"]: row["joined"] for row in pq.read_table(path).to_pylist()} if path.exists() else {}
    return lambda record: joined.get(record["cluster"], record["cluster"])


# --- each outcome once ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(pool: Pool, make: Make) -> Path:
    """A chain of changes, the first two of each step in it; its second code was removed for its first."""
    return make([row(pool, place, 0.5 - place / 1000) for place in (0, 1, 30, 60, 90, 110)])


def only(folder: Path) -> Row:
    (decision,) = decisions_of(folder)
    return decision


def test_further_rows_of_a_published_network_go_to_stats(pool: Pool, make: Make, base: Path) -> None:
    delta = make([row(pool, 0, 0.9), row(pool, 0, 0.8), row(pool, 0, 0.7, "other-name")], base)
    assert not records_of(delta)
    id_ = hashlib.sha256(pool.codes[0].encode()).hexdigest()
    found = [(one["stage"], one["canonical"], one["similarity"]) for one in decisions_of(delta)]
    assert found == [("exact", id_, 1.0), ("repeat", id_, 1.0), ("exact", id_, 1.0)]
    assert decisions_of(delta)[0]["reason"] == f"published as net-0 of {base.name}"
    assert pq.read_table(delta / "data" / "stats").column("accuracy").to_pylist() == [0.9, 0.8, 0.7]
    assert pq.read_table(delta / "networks.parquet").num_rows == 0


def test_a_code_that_was_removed_there_shares_that_decision(pool: Pool, make: Make, base: Path) -> None:
    there = decisions_of(base)[1]
    assert there["stage"] == "exact"
    found = only(make([row(pool, 1, 0.99, "again")], base))
    assert [found[key] for key in ("stage", "canonical", "similarity")] == ["exact", there["canonical"], 1.0]
    assert found["reason"].endswith(f"so decided in {base.name}")


@pytest.mark.slow
def test_only_kept_records_remove(pool: Pool, make: Make) -> None:
    one, middle, other = next(
        (one, middle, other)
        for one, middle, other in itertools.permutations(range(len(pool.features)), 3)
        if pool.near(pool.codes[one], pool.codes[middle]) and pool.near(pool.codes[middle], pool.codes[other])
        if not pool.near(pool.codes[one], pool.codes[other])
    )
    base = make([row(pool, one, 0.9), row(pool, middle, 0.5)])
    assert [decision["kept"] for decision in decisions_of(base)] == [True, False]
    assert only(make([row(pool, other, 0.1)], base))["kept"]
    assert only(make([row(pool, middle, 0.99)], base))["canonical"] == decisions_of(base)[0]["id"]


def bridge(pool: Pool) -> tuple[int, int, int]:
    """Two codes that need not be together and a third that must be with both, none near-duplicates."""
    places = range(len(pool.features))
    for one, other, third in itertools.permutations(places, 3):
        codes = [pool.codes[place] for place in (one, other, third)]
        if one < other and not pool.together(codes[0], codes[1]):
            ties = (pool.together(code, codes[2]) and not pool.near(code, codes[2]) for code in codes[:2])
            if all(ties):
                return one, other, third
    raise AssertionError("the pool holds none")


@pytest.fixture(scope="module")
def split_base(pool: Pool, make: Make) -> tuple[Path, int]:
    """A snapshot that has the two ends of a bridge in different splits, and the bridge."""
    one, other, third = bridge(pool)
    alone = [pool.codes.index(code) for code in ("x = 1\n", "pass\n")]
    fill = [place for place in (0, 27, 54, 81, 108) if not pool.together(pool.codes[place], pool.codes[one])]
    fill = [place for place in fill if not pool.together(pool.codes[place], pool.codes[other])]
    for seed in range(200):
        places = dict.fromkeys([one, other, *fill, *alone])
        made = make([row(pool, place, 0.5) for place in places], seed=seed)
        split = {record["nn"]: record["split"] for record in records_of(made)}
        if split[f"net-{one}"] != split[f"net-{other}"]:
            return made, third
        shutil.rmtree(made)
    raise AssertionError("no seed puts them apart")


def test_a_record_that_ties_two_splits_is_not_kept(pool: Pool, make: Make, split_base: tuple[Path, int]) -> None:
    base, third = split_base
    delta = make([row(pool, third, 0.9), row(pool, third, 0.8)], base)
    first, further = decisions_of(delta)
    assert (first["stage"], first["canonical"], further["stage"]) == ("leak", None, "repeat")
    ends = [record for record in records_of(base) if pool.together(pool.by_id[record["id"]], pool.codes[third])]
    assert len({record["split"] for record in ends}) == 2
    assert sum(f"{record['nn']} of {base.name} ({record['split']})" in first["reason"] for record in ends) == 2
    assert all(check.ok for check in verify(delta, jobs=1))
    told = explain(delta, f"net-{third}")
    assert told.facts["stage"] == "leak"
    # what a delta kept out stays out beside both
    again = only(make([row(pool, third, 0.9)], base, delta))
    assert (again["stage"], again["canonical"]) == ("leak", None)
    assert again["reason"].endswith(f"so decided in {delta.name}")


def test_old_indexes_leave_the_cache(
    pool: Pool, make: Make, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "cache"))

    def indexed() -> list[str]:
        found = (tmp_path / "cache" / "published").glob("*/facts.json")
        return sorted(json.loads(path.read_text())["folder"] for path in found)

    here, there = (shutil.copytree(base, tmp_path / name) for name in ("here", "there"))
    make([row(pool, 2, 0.99)], here)
    make([row(pool, 2, 0.99)], there)
    (here / "decisions.parquet").touch()
    make([row(pool, 2, 0.99)], here)
    assert indexed() == [str(here), str(there)]
    shutil.rmtree(there)
    (here / "decisions.parquet").touch()
    make([row(pool, 2, 0.99)], here)
    assert indexed() == [str(here)]


def test_explain_reaches_the_published_record(pool: Pool, make: Make, base: Path, tmp_path: Path) -> None:
    delta = make([row(pool, 2, 0.99)], base)
    told = explain(delta, "net-2")
    assert told.facts["canonical"]["name"] == "net-0"
    assert told.facts["diff"]
    assert f"in {base}" in "\n".join(told.lines)
    moved = tmp_path / "elsewhere"
    shutil.move(delta, moved)
    with pytest.raises(UserError, match=rf"is a delta against {base.name} .* not next to it; name that folder"):
        explain(moved, "net-2")
    assert explain(moved, "net-2", [base]).facts["canonical"]["name"] == "net-0"


def test_the_manifest_names_the_parents(pool: Pool, make: Make, base: Path) -> None:
    first = make([row(pool, 40, 0.3)], base)
    manifest = read_manifest(make([row(pool, 70, 0.3)], base, first))
    digests = {sha256_file(folder / "manifest.json") for folder in (base, first)}
    assert {parent.sha256 for parent in manifest.parents} == set(manifest.parameters["against"]) == digests


def test_groups_that_a_new_record_joins_get_one_key(pool: Pool, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curate.model.splits, "SPLIT_RATIOS", {"train": 1.0, "validation": 0.0, "test": 0.0})
    one, other, third = bridge(pool)
    base = make([row(pool, one, 0.5), row(pool, other, 0.5)], seed=1)
    before = {record["nn"]: record for record in records_of(base)}
    ends = [before[f"net-{place}"] for place in (one, other)]
    assert ends[0]["cluster"] != ends[1]["cluster"]
    delta = make([row(pool, third, 0.5)], base)
    (record,) = records_of(delta)
    smaller, larger = sorted(end["cluster"] for end in ends)
    assert record["cluster"] == smaller
    assert pq.read_table(delta / "clusters.parquet").to_pylist() == [{"cluster": larger, "joined": smaller}]
    further = make([row(pool, pool.codes.index("x = 2\n"), 0.5)], base, delta)
    assert pq.read_table(further / "clusters.parquet") == pq.read_table(delta / "clusters.parquet"), (
        "kept for the chain"
    )
    assert all(check.ok for folder in (delta, further) for check in verify(folder, jobs=1))
    falsify(delta, "clusters.parquet", lambda item: item.update(joined="0" * 16))
    failed = {check.name: check.detail for check in verify(delta, jobs=1) if not check.ok}
    assert "clusters.parquet does not state" in failed["guarantee 4: no leakage"]


# --- deltas made in parallel ------------------------------------------------------------------------------------------


def test_deltas_that_conflict_are_refused_together(
    pool: Pool, make: Make, lemur_here: Callable[..., Any], base: Path, new_rows: Path, tmp_path: Path
) -> None:
    one, other = make([row(pool, 27, 0.9)], base), make([row(pool, 28, 0.9), row(pool, 54, 0.8)], base)
    assert all(check.ok for folder in (one, other) for check in verify(folder, jobs=1))
    assert pool.near(pool.codes[27], pool.codes[28])
    wanted = f"{other}: was made in parallel with {one}, with 1 conflict: net-28 of {other.name}: "
    said = refused(lemur_here, new_rows, tmp_path, base, one, other)
    assert said.startswith(f"lemur: {wanted}")
    assert said.endswith(f"; decide both again in one delta: lemur curate {one} {other} --against {base}")
    done = lemur_here("verify", other, "--against", base, "--against", one, cwd=tmp_path)
    assert done.returncode == 1
    (failed,) = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert failed.startswith(f"FAIL  union of {one.name} and {other.name}: net-28: Jaccard ")
    merged = tmp_path / "merged"
    asked = ("curate", one, other, "--against", base, "--graph", "off", "--out", merged)
    assert lemur_here(*asked, cwd=tmp_path).returncode == 0
    assert [record["nn"] for record in records_of(merged)] == ["net-27", "net-54"]
    assert all(check.ok for check in verify(merged, against=[base], jobs=1))


@pytest.mark.slow
@settings(max_examples=10)
@given(parts=st.lists(ROWS, min_size=3, max_size=3), seed=st.integers(0, 3))
def test_parallel_deltas_are_refused_exactly_if_a_pair_of_them_conflicts(
    pool: Pool, make: Make, parts: list[list[tuple[int, int]]], seed: int
) -> None:
    def rows(number: int) -> list[Row]:
        return [row(pool, place % len(pool.codes), accuracy / 1000) for place, accuracy in parts[number]]

    base = make(rows(0), seed=seed)
    one, other = make(rows(1), base), make(rows(2), base)
    now = {record["cluster"]: {record["cluster"]} for made in (base, one, other) for record in records_of(made)}
    for joined in (keys_of(one), keys_of(other)):
        for cluster in sorted(now):
            merged = now[cluster] | now[joined({"cluster": cluster})]
            now |= dict.fromkeys(merged, merged)
    conflicts = [
        (a["nn"], b["nn"])
        for a, b in itertools.product(records_of(one), records_of(other))
        for first, second in [(pool.by_id[a["id"]], pool.by_id[b["id"]])]
        if first == second
        or pool.near(first, second)
        or (pool.together(first, second) and (a["split"] != b["split"] or now[a["cluster"]] is not now[b["cluster"]]))
    ]
    (union,) = [check for check in verify(one, against=[other], jobs=1) if check.name.startswith("union")]
    if conflicts:
        assert not union.ok
        with pytest.raises(UserError, match="was made in parallel with"):
            make([row(pool, 0, 0.5)], base, one, other)
    else:
        assert union.ok
        assert all(check.ok for check in verify(make([row(pool, 0, 0.5)], base, one, other), jobs=1))


# --- verify finds what is wrong ---------------------------------------------------------------------------------------


def falsify(folder: Path, name: str, change: Callable[[Row], None]) -> None:
    """Change the rows of a table, and the manifest's digest of it."""
    import pyarrow as pa

    for path in sorted(folder.glob(name)):
        table = pq.read_table(path)
        rows = table.to_pylist()
        for item in rows:
            change(item)
        old = sha256_file(path)
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
        for text in (folder / "manifest.json", folder / "croissant.json"):
            text.write_text(text.read_text().replace(old, sha256_file(path)))


@table(__file__, "delta.md", "Verify sees a wrong decision about a published code", globals())
def test_verify_sees_a_wrong_decision_about_a_published_code(
    pool: Pool, make: Make, base: Path, name: str, change: Row, check: str | None
) -> None:
    delta = make([row(pool, 0, 0.9), row(pool, 20, 0.1)], base)
    assert all(item.ok for item in verify(delta, jobs=1))
    published = {record["id"] for record in records_of(base)}
    falsify(delta, name, lambda item: item.update(change) if item["id"] in published else None)
    failed = [item.name for item in verify(delta, jobs=1) if not item.ok]
    assert (check is None) == all(item == "digests" for item in failed)
    assert check is None or any(item.startswith(check) for item in failed)


def test_verify_sees_a_leak_across_the_union(pool: Pool, make: Make, split_base: tuple[Path, int]) -> None:
    base, third = split_base
    alone = make([row(pool, third, 0.9)])
    delta = make([row(pool, pool.codes.index("x = 2\n"), 0.9)], base)
    # as if the guard had let the bridge in: the records of another snapshot under this delta's manifest
    forged = delta.with_name("forged")
    shutil.copytree(alone, forged)
    manifest, own = read_manifest(delta), read_manifest(forged)
    from manifests.folders.manifest import write_manifest

    changed = {"parameters": manifest.parameters, "parents": manifest.parents}
    details = own.details | {"against": manifest.details["against"]}
    write_manifest(forged, own.model_copy(update=changed | {"details": details}))
    failed = [check.name for check in verify(forged, jobs=1) if not check.ok]
    assert "guarantee 4: no leakage" in failed


def test_verify_of_a_chain_reads_each_folder_once(pool: Pool, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    chain: list[Path] = []
    for place in range(4):
        chain.append(make([row(pool, 27 * place, 0.9), row(pool, 27 * place + 1, 0.2), row(pool, 0, 0.1)], *chain))
    read: list[Path] = []

    def counted(files: list[Path], *further: Any) -> Iterator[NetworkRow]:
        read.extend(files)
        return read_rows(files, *further)

    monkeypatch.setattr("curate.published.delta_check.read_rows", counted)
    checks = verify(chain[3], jobs=1)
    assert all(check.ok for check in checks)
    assert {check.name for check in checks if check.name.startswith("parent")} == {
        f"parent {x.name}" for x in chain[:3]
    }
    tables = [[*folder.glob("data/records/*.parquet"), folder / "networks.parquet"] for folder in chain]
    assert sorted(read) == sorted(itertools.chain(*tables))
    published = {record["id"] for record in records_of(chain[0])}
    falsify(chain[1], "decisions.parquet", lambda item: item["id"] in published and item.update(stage="lexical"))
    failed = [check.name for check in verify(chain[1], jobs=1) if not check.ok]
    assert any(name.startswith("guarantee 6") for name in failed)


def test_verify_keeps_snapshots_apart_that_know_nothing_of_each_other(pool: Pool, make: Make) -> None:
    """They share a code, and hold near-duplicates of each other."""
    one, other = make([row(pool, 0, 0.9), row(pool, 27, 0.9)]), make([row(pool, 0, 0.9), row(pool, 28, 0.9)])
    delta = make([row(pool, 0, 0.5), row(pool, 29, 0.5), row(pool, 54, 0.5)], one, other)
    assert [check for check in verify(delta, jobs=1) if not check.ok] == []


def test_verify_wants_the_same_rules(pool: Pool, make: Make, base: Path) -> None:
    from manifests.folders.manifest import write_manifest

    delta = make([row(pool, 54, 0.5)], base)
    manifest = read_manifest(delta)
    write_manifest(delta, manifest.model_copy(update={"parameters": manifest.parameters | {"lexical_threshold": 0.8}}))
    with pytest.raises(
        UserError, match=rf"was created with --lexical-threshold 0.9, {delta.name} has 0.8; use the same"
    ):
        verify(delta, jobs=1)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def new_rows(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import pyarrow as pa

    path = tmp_path_factory.mktemp("table") / "new.parquet"
    pq.write_table(pa.Table.from_pylist([{"nn": "net-2", "nn_code": pool.codes[2]}]), path)
    return path


@table(__file__, "delta.md", "Other rules are refused", globals())
def test_other_rules_are_refused(pool: Pool, make: Make, base: Path, options: Row, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"{base}: {said}; ")):
        make([row(pool, 2, 0.5)], base, **options)


def refused(lemur_here: Callable[..., Any], new_rows: Path, tmp_path: Path, *against: Path) -> str:
    given = [item for folder in against for item in ("--against", folder)]
    done = lemur_here("curate", new_rows, *given, "--graph", "off", "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 1
    assert not (tmp_path / "out").exists()
    return str(done.stderr.splitlines()[-1])


def test_mistakes_get_one_line(pool: Pool, make: Make, base: Path, tmp_path: Path) -> None:
    delta, changed = make([row(pool, 40, 0.3)], base), Path(shutil.copytree(base, tmp_path / "changed"))

    def message(*against: Path) -> str:
        with pytest.raises(UserError) as caught:
            make([row(pool, 2, 0.5)], *against)
        return str(caught.value)

    assert "no such folder" in message(tmp_path / "none")
    assert f"is a delta against {base.name} (manifest " in message(delta)
    assert message(delta).endswith("which is missing; add --against with that folder")
    assert "is the same snapshot as" in message(base, base)
    with (changed / "decisions.parquet").open("ab") as file:
        file.write(b"x")
    assert "decisions.parquet differs from its digest" in message(changed)
    (changed / "decisions.parquet").unlink()
    assert "decisions.parquet: No such file" in message(changed)
    with pytest.raises(UserError, match=r"does not extend it; it extends nothing: it is not a delta$"):
        verify(base, against=[delta], jobs=1)


def test_the_command_from_end_to_end(
    lemur_here: Callable[..., Any], base: Path, new_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curate.run.pipeline, "write_report", write_report)
    done = lemur_here("curate", new_rows, "--against", base, "--graph", "off", "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "structural         1  near-duplicates by structure" in done.stdout
    assert base.name in (tmp_path / "out" / "README.md").read_text()
    assert base.name in (tmp_path / "out" / "report.md").read_text()
    assert lemur_here("verify", tmp_path / "out", "--against", base, cwd=tmp_path).returncode == 0
    traced = lemur_here("trace", "net-2", "--in", tmp_path / "out", "--in", base, cwd=tmp_path)
    assert traced.returncode == 0
    assert "stands for it a published record" in traced.stdout  # what is beside the folder is read, then those given
    assert "record     net-0" in traced.stdout
    shutil.copytree(base, tmp_path / base.name)
    traced = lemur_here("trace", "net-2", "--in", tmp_path / "out", cwd=tmp_path)
    assert "stands for it net-0" in traced.stdout
