"""`curate_from_lemur` in the place of nn-dup's: its files, its decisions, and the code of nn-gpt that calls it."""

import ast
import importlib.util
import inspect
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate import curate_from_lemur
from curate.model.options import matching_prefix
from lemur_core.files.errors import UserError
from tests.builders.suites import read_files

CODE = "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x{}\n"
BENCHMARK = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1}


def rows() -> list[dict[str, Any]]:
    """Six networks, of which two have one code and one is of another data set."""
    names = ("ga-1", "ga-2", "GAN", "GenFractalNet-1", "GenFractalNet-2", "rl-1")
    layers = ("Conv2d(3, 8, 3)", "Conv2d(3, 8, 3)", "Linear(4, 4)", "LSTM(2, 2)", "GRU(2, 2)", "Embedding(5, 5)")
    found = []
    for place, (name, layer) in enumerate(zip(names, layers, strict=True)):
        code = CODE.format(f" + torch.nn.{layer}(x)" * (2 + place % 2))
        code = found[0]["nn_code"] if name == "ga-2" else code
        found.append({"nn": name, "nn_code": code, "accuracy": 0.5 + place / 100, **BENCHMARK})
    found.append({**found[3], "nn": "ga-3", "nn_code": CODE.format(" @ x"), "dataset": "svhn"})
    return found


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return str(path)


def test_signature_is_that_of_nn_dup() -> None:
    given = inspect.signature(curate_from_lemur).parameters
    positional = {name: item.default for name, item in given.items() if item.kind is item.POSITIONAL_OR_KEYWORD}
    assert positional == {
        "out_dir": Path("./curation_output"), "includes": None, "prefer_order": None, "min_per_prefix": 1,
        "keep_per_family": 5, "lex_thresh_fractal": 0.97, "topup_prefixes": None, "topup_per_prefix": 10,
        "topup_lex_max": 0.85, "topup_struct_max": 0.60, "dump_code_subdir": "accepted_code", "upweights": None,
        "logger": None,
    }  # fmt: skip
    if importlib.util.find_spec("ab.dup") is not None:
        [path] = importlib.util.find_spec("ab.dup").submodule_search_locations  # type: ignore[union-attr]
        tree = ast.parse((Path(path) / "preprocessing.py").read_text())
        [peer] = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "curate_from_lemur"]
        assert [argument.arg for argument in peer.args.args] == list(positional)
        assert not any(
            isinstance(node, ast.Return) and node.value is not None for node in ast.walk(peer) if node in peer.body
        )


def test_files(tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "out"
    (out / "accepted_code").mkdir(parents=True)
    (out / "accepted_code" / "notes.txt").write_text("mine")
    caplog.set_level(logging.INFO)
    answer = curate_from_lemur(out, upweights=[("rl", 3.0)], source=source, jobs=1)  # type: ignore[func-returns-value]
    assert answer is None
    kept = json.loads((out / "kept_records.json").read_text())
    assert sorted(record["name"] for record in kept) == [
        "GAN",
        "GenFractalNet-1",
        "GenFractalNet-2",
        "ga-2",
        "ga-3",
        "rl-1",
    ]
    assert list(kept[0]) == ["id", "name", "accuracy", "family_tag"]
    tombstones = json.loads((out / "tombstones.json").read_text())
    [(removed, tombstone)] = tombstones.items()
    canonical = next(record["id"] for record in kept if record["name"] == "ga-2")
    named = {"reason": "exact_duplicate", "canonical": canonical, "name": "ga-1", "canonical_name": "ga-2"}
    assert (removed[-2:], tombstone) == ("_0", named)
    splits = json.loads((out / "splits.json").read_text())
    assert splits.keys() == {record["id"] for record in kept}
    assert {*splits.values()} <= {"train", "dev", "test"}
    codes = sorted(path.name for path in (out / "accepted_code").iterdir())
    assert codes == sorted([*(f"{record['name']}__{record['id'][:12]}.py" for record in kept), "notes.txt"])
    weights = (out / "sampling_weights.csv").read_text().splitlines()
    assert weights[0] == "id,name,weight"
    assert sorted(line.rpartition(",")[2] for line in weights[1:]) == ["1.0"] * 5 + ["3.0"]
    assert "](snapshot/figures/" in (out / "dedup_report.md").read_text()
    assert (out / "snapshot" / "manifest.json").is_file()
    assert "kept 6 codes" in caplog.text
    curate_from_lemur(out, nn_prefixes=("rl-",), source=source, jobs=1)
    assert [p.name.partition("__")[0] for p in (out / "accepted_code").glob("*.py")] == ["rl-1"]
    assert (out / "accepted_code" / "notes.txt").read_text() == "mine"
    assert not (out / "sampling_weights.csv").exists()


def kept_names(out: Path) -> list[str]:
    return sorted(record["name"] for record in json.loads((out / "kept_records.json").read_text()))


def test_dataset_and_whole_prefixes(tmp_path: Path, source: str) -> None:
    curate_from_lemur(tmp_path / "a", dataset="cifar-10", nn_prefixes=("ga-", "GenFractalNet"), source=source, jobs=1)
    assert kept_names(tmp_path / "a") == ["GenFractalNet-1", "GenFractalNet-2", "ga-2"]
    curate_from_lemur(tmp_path / "b", includes=["ga-"], source=source, jobs=1)  # as nn-dup compares names
    assert kept_names(tmp_path / "b") == ["GAN", "ga-2", "ga-3"]
    strict = {"min_per_prefix": 0, "profile": "strict", "task": ["img-classification"], "metric": "acc"}
    with pytest.raises(UserError, match=r"^--dataset cifar: no row has it; near: cifar-10; there are cifar-10, svhn$"):
        curate_from_lemur(tmp_path / "c", dataset="cifar", source=source, jobs=1, **strict)
    with pytest.raises(UserError, match="no record is left"):
        curate_from_lemur(tmp_path / "c", nn_prefixes="unknown-", source=source, jobs=1)
    assert not (tmp_path / "c" / "snapshot").exists()


# --- nn-gpt's own code ------------------------------------------------------------------------------------------------

#: The one method of nn-gpt that asks for a curation, run as it stands in its file, with what it takes from its module.
TEXTS = read_files(__file__, "from_lemur.md")
CALLER = TEXTS["CALLER"]


@pytest.fixture(scope="session")
def nn_gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of nn-gpt that asks for a curation, out of a checkout or its git directory."""
    named, inside = os.environ.get("LEMUR_CURATOR_TEST_NN_GPT"), "ab/gpt/act/iterative/finetune.py"
    if not named:
        pytest.skip("LEMUR_CURATOR_TEST_NN_GPT names no checkout or git directory of nn-gpt")
    if (Path(named) / inside).is_file():
        return Path(named) / inside
    shown = subprocess.run(["git", "-C", named, "show", f"HEAD:{inside}"], capture_output=True, check=False)
    if shown.returncode:
        pytest.skip(f"{named} holds no {inside} at HEAD")
    path = tmp_path_factory.mktemp("nn-gpt") / "finetune.py"
    path.write_bytes(shown.stdout)
    return path


def ask(nn_gpt: Path, out: Path, **settings: Any) -> "subprocess.CompletedProcess[str]":
    if importlib.util.find_spec("ab.chatprep") is None:
        pytest.skip("nn-dup 2.2.4 is not installed: nn-gpt goes on with its ab.chatprep")
    out.mkdir()
    (out / "curation_output").mkdir()
    (out / "curation_output" / "iterative_pipeline.log").touch()  # nn-gpt has begun to write there
    command = [sys.executable, "-P", "-c", CALLER, str(nn_gpt), str(out), json.dumps(settings)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])


def test_nn_gpt_gets_what_it_asks_for(nn_gpt: Path, tmp_path: Path, source: str) -> None:
    done = ask(nn_gpt, tmp_path / "out", source=source, dataset="cifar-10", nn_prefixes=["ga-", "GenFractalNet"])
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "WARNING" not in done.stdout  # neither filter was dropped, nor mapped
    assert "mapping nn_prefixes" not in done.stdout
    assert "Curation from LEMUR completed: None" in done.stdout  # nn-dup's return
    assert kept_names(tmp_path / "out" / "curation_output") == ["GenFractalNet-1", "GenFractalNet-2", "ga-2"]
    chat = tmp_path / "out" / "curation_output" / "chat_data"
    made = [
        json.loads(line)
        for name in ("train", "dev", "test")
        for line in (chat / f"{name}.jsonl").read_text().splitlines()
    ]
    assert made
    assert all("class Net" in row["messages"][-1]["content"] for row in made)


def test_nn_gpt_is_told_of_a_wrong_dataset(nn_gpt: Path, tmp_path: Path, source: str) -> None:
    done = ask(nn_gpt, tmp_path / "out", source=source, dataset="cifar10", nn_prefixes=["ga-"])
    assert done.returncode == 1
    assert "ERROR ✗ Curation data creation failed: --dataset cifar10: no row has it; near: cifar-10" in done.stdout


@pytest.mark.slow
@pytest.mark.network
def test_nn_gpt_on_the_real_corpus(nn_gpt: Path, tmp_path: Path, lemur_wheel: Path) -> None:
    """Its default data set and prefixes; nearly all of these networks are near-duplicates of each other."""
    done = ask(nn_gpt, tmp_path / "out", source="lemur", dataset="cifar-10", nn_prefixes=["ga-", "GenFractalNet"])
    assert done.returncode == 0, done.stderr[-2_000:]
    out = tmp_path / "out" / "curation_output"
    names = kept_names(out)
    assert len(names) >= 2
    assert all(matching_prefix(name, ["ga"]) == 0 for name in names)
    tables = [pq.read_table(path, columns=["dataset"]) for path in out.glob("snapshot/data/records/*.parquet")]
    assert {row["dataset"] for table in tables for row in table.to_pylist()} == {"cifar-10"}
