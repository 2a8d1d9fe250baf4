"""The whole of LEMUR 2.1.0: one run, its numbers, its guarantees."""

import ast
import json
import random
import zipfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.kinds import verify
from curate.model.options import CurateOptions
from curate.model.rights import Origins
from curate.run.pipeline import curate
from curate.sources.lemur import LemurRelease
from lemur_core.similarity.tokens import class_texts
from manifests.folders.manifest import Manifest
from tests.curate.test_rights import extraction

pytestmark = [pytest.mark.network, pytest.mark.slow]


@dataclass(frozen=True)
class Run:
    folder: Path
    manifest: Manifest
    decisions: pa.Table
    records: list[dict[str, Any]]


@pytest.fixture(scope="module")
def run(real_rows: LemurRelease, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("lemur") / "snapshot"
    manifest = curate(real_rows, folder, CurateOptions(graph="off"))
    records = pq.read_table(sorted(folder.glob("data/records/*.parquet"))).to_pylist()
    return Run(folder, manifest, pq.read_table(folder / "decisions.parquet"), records)


def test_numbers(run: Run) -> None:
    counts = run.manifest.counts
    assert counts["rows"]["input"] == run.decisions.num_rows == 109_903
    assert (counts["networks"], counts["names"], counts["codes"], counts["trees"]) == (10_327, 10_327, 10_321, 9_742)
    assert counts["rows"]["invalid"] == counts["rows"]["filter"] == 0
    assert counts["rows"]["repeat"] == 109_903 - 10_327
    assert 1_100 <= counts["rows"]["kept"] == len(run.records) <= 1_250
    assert counts["rows"]["input"] == sum(number for name, number in counts["rows"].items() if name != "input")
    shares = {split: number / len(run.records) for split, number in counts["splits"].items()}
    assert shares == pytest.approx({"train": 0.8, "validation": 0.1, "test": 0.1}, abs=0.005)
    assert counts["prefixes"]["rag"]["kept"] / len(run.records) < 0.70  # 72.5 % in the peer's snapshot
    assert all(0 < record["score"] < 1 for record in run.records)
    assert any(record["pretrained"] for record in run.records)
    assert run.manifest.details["lsh"]["recall"] == 1.0
    assert run.manifest.details["lsh"]["pairs"] > 10_000


def test_every_check_passes(run: Run) -> None:
    checks = verify(run.folder)
    assert [f"{check.name}: {check.detail}" for check in checks if not check.ok] == []
    assert {"rows", "licenses", "near duplicates", "witnesses", "leaks"} <= {check.name for check in checks}


@pytest.fixture(scope="module")
def rows(real_rows: LemurRelease) -> pa.Table:
    return pa.concat_tables([pa.table(batch.drop_columns(["nn_code", "problem"])) for batch in real_rows.batches()])


def test_rows_are_ordered_and_typed(rows: pa.Table) -> None:
    keys = list(
        zip(*(rows.column(name).to_pylist() for name in ("task", "dataset", "metric", "nn", "epoch")), strict=True)
    )
    assert keys == sorted(keys)
    assert len(keys) == 109_903
    assert len(set(keys)) == 99_771
    assert len({key[3] for key in keys}) == 10_327
    assert rows.column("duration").null_count == 14_976
    assert rows.column("accuracy").null_count == 0


def test_rows_are_the_best_trials_with_all_ties(rows: pa.Table, lemur_wheel: Path) -> None:
    """300 evaluations, worked out anew from their files."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows.to_pylist():
        found[row["task"], row["dataset"], row["metric"], row["nn"], row["epoch"]].append(row)
    tied = sorted((key for key, group in found.items() if len(group) > 1), key=str)
    chosen = random.Random(1).sample(sorted(found, key=str), 200) + random.Random(2).sample(tied, 100)
    with zipfile.ZipFile(lemur_wheel) as archive:
        for key in chosen:
            task, dataset, metric, nn, epoch = key
            trials = json.loads(archive.read(f"ab/nn/stat/train/{task}_{dataset}_{metric}_{nn}/{epoch}.json"))
            best = max(trial["accuracy"] for trial in trials)
            winners = [trial for trial in trials if trial["accuracy"] == best]
            rows_of_key = found[key]
            assert [row["accuracy"] for row in rows_of_key] == [best] * len(winners)
            assert Counter(row["duration"] for row in rows_of_key) == Counter(
                trial.get("duration") for trial in winners
            )
            for row in rows_of_key:
                prm = json.loads(row["prm"])
                about = {"accuracy", "duration", "uid"}
                assert not about & prm.keys()
                assert any(prm.keys() >= trial.keys() - about for trial in winners), (
                    "trials that share a uid share more"
                )
                for value in prm.values():
                    assert not isinstance(value, bool)
                    assert not (isinstance(value, float) and value.is_integer()), (
                        "integral hyperparameters are integers"
                    )


def test_codes_are_those_of_the_wheel(run: Run, lemur_wheel: Path) -> None:
    with zipfile.ZipFile(lemur_wheel) as archive:
        for record in random.Random(3).sample(run.records, 100):
            text = archive.read(f"ab/nn/nn/{record['nn']}.py").decode()
            assert record["nn_code"] == text.replace("\r\n", "\n").replace("\r", "\n")


def test_what_torchvision_wrote_is_found(run: Run, tmp_path: Path) -> None:
    """Names play no part in the comparison, and judge it: a class is called as the one that it is from."""
    torchvision = pytest.importorskip("torchvision", reason="needs torchvision's own code")
    blocks = [
        (f"torchvision::{path.stem}.{item.name}", "BSD-3-Clause", path.read_text(encoding="utf-8"))
        for path in sorted((Path(torchvision.__file__).parent / "models").glob("*.py"))
        for item in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(item, ast.ClassDef)
    ]
    library = Origins([extraction(tmp_path / "torchvision", blocks)])
    files = sorted(run.folder.glob("data/records/*.parquet"))
    codes = [row["nn_code"] for path in files for row in pq.read_table(path, columns=["nn_code"]).to_pylist()]
    found = [origin for code in codes if (origin := library.find_origin(class_texts(code))) is not None]
    assert len(found) > 40
    alike = [origin for origin in found if origin.name.strip("_") == origin.block.rpartition(".")[2].strip("_")]
    assert len(alike) >= 0.95 * len(found), [(origin.name, origin.block) for origin in found if origin not in alike]
