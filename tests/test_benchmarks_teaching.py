"""Whether curated data teach a model more: what each arm learns, and that a run which is interrupted ends the same."""

import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.teaching_corpus import Text, read_corpus, read_released, read_snapshot, without_head
from benchmarks.teaching_judge import COPIED, copied, run_all, windows
from benchmarks.teaching_model import (
    Decoder,
    Shape,
    _windows,
    bits,
    encode,
    load_decoder,
    make_stream,
    make_tokenizer,
    rate_at,
    train,
)
from lemur_core.files.errors import UserError
from tests.builders.suites import read_files
from train.runs.process import choose_context

TEXTS = read_files(__file__, "benchmarks_teaching.md")
CODE = TEXTS["CODE"]

LAYERS = (
    ("nn.Conv2d", "nn.BatchNorm2d", "nn.ReLU"),
    ("nn.MaxPool2d", "nn.Dropout2d", "nn.GELU", "nn.Conv2d"),
    ("nn.AvgPool2d", "nn.InstanceNorm2d", "nn.SiLU", "nn.Conv2d", "nn.Tanh"),
    ("nn.Upsample", "nn.LPPool2d", "nn.Mish", "nn.ELU", "nn.Softplus", "nn.Conv2d"),
    ("nn.PixelShuffle", "nn.GLU", "nn.CELU", "nn.SELU", "nn.Hardswish", "nn.Conv2d", "nn.Sigmoid"),
)


def code_of(kind: int, width: int = 8) -> str:
    layers = [f"{name}({width}, {number})" for number, name in enumerate(LAYERS[kind])]
    return CODE.format(layers=",\n            ".join(layers * 3), width=width)


def digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def write_snapshot(
    folder: Path, kept: list[str], removed: Sequence[str] = (), widths: Mapping[str, str] | None = None
) -> Path:
    """A folder with what is read of a snapshot: a group of its own for each kept code, names by number."""
    (folder / "data" / "records").mkdir(parents=True)
    rows = [
        {"id": digest(code), "nn": f"kept-{at}", "nn_code": code, "cluster": f"c{at}", "task": "img-classification"}
        for at, code in enumerate(kept)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "data" / "records" / "train-00000-of-00001.parquet")
    gone = [{"id": digest(code), "nn": f"gone-{at}", "nn_code": code} for at, code in enumerate(removed)]
    schema = pa.schema([("id", pa.string()), ("nn", pa.string()), ("nn_code", pa.string())])
    pq.write_table(pa.Table.from_pylist(gone, schema), folder / "networks.parquet")
    decided = [  # a network has several rows
        {"id": row["id"], "nn": row["nn"], "canonical": row["id"]} for row in [*rows, *rows, *gone]
    ]
    decided.append({"id": rows[-1]["id"], "nn": "twin", "canonical": rows[-1]["id"]})  # and a code may have two names
    pq.write_table(pa.Table.from_pylist(decided), folder / "decisions.parquet")
    graphs = [{"id": digest(code), "graph_widths": (widths or {}).get(code)} for code in [*kept, *removed]]
    schema = pa.schema([("id", pa.string()), ("graph_widths", pa.string())])
    pq.write_table(pa.Table.from_pylist(graphs, schema), folder / "graphs.parquet")
    return folder


def write_library(folder: Path, blocks: list[tuple[str, str, str | None]]) -> Path:
    folder.mkdir()
    rows = [
        {"block": f"b{at}", "lean_code": f"# from there\n#\n{code}", "lean_license": licence, "graph_widths": widths}
        for at, (code, licence, widths) in enumerate(blocks)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "blocks.parquet")
    return folder


def folders(tmp_path: Path) -> dict[str, Path]:
    kept = [code_of(kind) for kind in range(4)]
    near = [code_of(kind, 16) for kind in range(4)]  # the same tokens, but for numbers
    widths = {code_of(kind): f"g{kind}" for kind in range(4)}
    blocks = [
        *((code_of(4), "MIT", f"g{kind}") for kind in range(1)),
        (code_of(4).replace("Sequential", "ModuleList"), "MIT", None),
        (code_of(4).replace("Linear", "LazyLinear"), "GPL-3.0-only", None),
    ]
    return {
        "nndup": write_snapshot(tmp_path / "nndup", near),
        "plain": write_snapshot(tmp_path / "plain", kept),
        "graphs": write_snapshot(tmp_path / "graphs", kept, near, widths),
        "library": write_library(tmp_path / "library", blocks),
    }


def read_all(given: Mapping[str, Path]) -> dict[str, Sequence[Text]]:
    """The texts of the folders, with nothing held out."""
    arms: dict[str, Sequence[Text]] = {name: read_snapshot(given[name]) for name in ("nndup", "plain", "graphs")}
    return arms | {"released": read_released(given["graphs"], arms["graphs"])}


def test_held_out_groups_leave_every_arm_with_their_neighbours(tmp_path: Path) -> None:
    given = folders(tmp_path)
    corpus = read_corpus(given, held=1, drawn_by=3)
    (held,) = corpus.held
    kind = int(held.group[1:])
    assert held.code == code_of(kind)
    out = {code_of(kind), code_of(kind, 16)}
    (common,) = corpus.common
    assert common.code not in out, "drawn from what is left of the release"
    out.add(common.code)
    for arm, texts in corpus.arms.items():
        assert not out & {text.code for text in texts}, arm
    # four kept, four removed, and a code with two names; further rows of a network are no texts
    assert corpus.before == {"released": 9, "random": 9, "nndup": 4, "plain": 4, "graphs": 4, "library": 6}
    selected = {arm: sum(common.code == text.code for text in texts) for arm, texts in read_all(given).items()}
    twice = sum(text.code == code_of(3) for text in corpus.arms["released"])
    assert {arm: len(texts) for arm, texts in corpus.arms.items() if arm != "random"} == {
        "released": (6 if kind == 3 else 7) - selected["released"],
        "nndup": 3 - selected["nndup"],
        "plain": 3 - selected["plain"],
        "graphs": 3 - selected["graphs"],
        "library": (4 if kind == 0 else 5) - selected["graphs"],  # the block that computes the same as network 0, too
    }
    assert twice in (0, 2)
    size = {arm: sum(len(text.code) for text in texts) for arm, texts in corpus.arms.items()}
    longest = max(len(text.code) for text in corpus.arms["released"])
    assert size["graphs"] <= size["random"] < size["graphs"] + longest, "as many bytes, but for the last text"
    assert {text.id for text in corpus.arms["random"]} <= {text.id for text in corpus.arms["released"]}
    again = read_corpus(given, held=1, drawn_by=3)
    assert corpus.digest(corpus.arms) == again.digest(again.arms)
    assert len({read_corpus(given, held=1, drawn_by=seed).held[0].id for seed in range(8)}) > 1, "drawn by the seed"


def test_blocks_that_are_not_permissively_licensed_stay_out_and_heads_are_cut(tmp_path: Path) -> None:
    corpus = read_corpus(folders(tmp_path), held=1, drawn_by=0)
    codes = [text.code for text in corpus.arms["library"]]
    assert any("ModuleList" in code for code in codes)
    assert not any("LazyLinear" in code or "from there" in code for code in codes)
    assert without_head("# a\n\n# b\nimport os\n# c\n") == "import os\n# c\n"


def test_holding_out_all_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--held 4: leaves an arm without texts"):
        read_corpus(folders(tmp_path), held=4, drawn_by=0)


def test_what_is_copied_is_counted_by_windows() -> None:
    learned = np.unique(windows(np.arange(40, dtype=np.uint16).reshape(2, 20)))
    assert len(learned) == 2 * (20 - COPIED + 1)
    text = [*range(5, 5 + COPIED + 1), 99, *range(COPIED)]  # two windows as learned, one more at the end
    assert copied([text, [1, 2]], learned) == (3, len(text) - COPIED + 1)
    assert copied([list(range(15, 15 + COPIED))], learned) == (0, 1), "from one row into the next"


def test_samples_are_tried_as_networks() -> None:
    runs = CODE.format(layers="nn.Conv2d(3, 8, 3)", width=8)
    told = run_all([runs, runs.replace("x).mean", "x, x).mean"), runs.replace("Net(", "Block("), "class Net(:", ""])
    assert [(row["parses"], row["constructs"], row["runs"], row["error"]) for row in told] == [
        (True, True, True, ""),
        (True, True, False, "forward_failed"),
        (True, False, False, "no_net"),
        (False, False, False, "no_python"),
        (True, False, False, "no_net"),
    ]


def test_the_rate_rises_and_falls() -> None:
    rates = [rate_at(step, 200) for step in range(200)]
    assert max(rates) == rates[5] == 1
    assert rates[:6] == sorted(rates[:6])
    assert rates[6:] == sorted(rates[6:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.001)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, 40])
def test_each_token_is_told_once_from_half_a_context(length: int) -> None:
    told: list[int] = []
    for text, ids, known in _windows([[0], list(range(length + 1))], 8):
        assert text == 1, "nothing is to be told of an empty text"
        assert len(ids) <= 8 + 1
        assert known >= 4 or ids[0] == 0
        told += ids[known:]
    assert told == list(range(1, length + 1))


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
TINY = Shape(vocabulary=300, width=16, inner=32, layers=1, heads=1, context=32, batch=2, tokens=512)


@pytest.mark.slow
def test_training_ends_the_same_wherever_it_was_interrupted(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    import torch

    tokenizer = make_tokenizer([code_of(kind) for kind in range(4)], 300, tmp_path / "tokens")
    texts = [encode(tokenizer, code_of(kind)) for kind in range(4)]
    stream = make_stream([len(code_of(kind)) for kind in range(4)], texts.__getitem__, TINY, 1)
    assert stream.rows.shape == (TINY.steps * 2, 33)
    place = choose_context("cpu")

    def run(name: str, until: float) -> dict[str, Any] | None:
        return train(tmp_path / name, TINY, stream, 1, place, until, name)

    whole = run("whole", time.monotonic() + 600)
    assert whole is not None
    for _ in range(TINY.steps - 1):
        assert run("parts", 0) is None, "a step a call"
    parts = run("parts", 0)
    assert parts is not None
    assert parts["losses"] == whole["losses"]
    assert whole["losses"][-1] < whole["losses"][0]
    one, other = (load_decoder(tmp_path / name, TINY, place).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())
    model = load_decoder(tmp_path / "whole", TINY, place)
    (needed,) = bits(model, texts[:1], TINY, place)
    (before,) = bits(Decoder(TINY, 1).eval(), texts[:1], TINY, place)
    assert before == pytest.approx(math.log2(TINY.vocabulary) * len(texts[0][1:]), rel=0.05)
    assert needed < before


@pytest.mark.slow
def test_a_study_trains_judges_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    given = folders(tmp_path)
    settings = {**{name: getattr(TINY, name) for name in TINY.__slots__}, "held": 1}
    options = [
        f"--{name}={value}" for name, value in {**given, **settings, "seeds": 2, "out": tmp_path / "out"}.items()
    ]

    def study(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "benchmarks.teaching", *options, *more]
        return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)

    library = options.pop(next(at for at, option in enumerate(options) if option.startswith("--library")))
    first = study("--arm", "graphs", "--seeds", "1")
    assert first.returncode == 0, first.stderr
    assert "our snapshot with graphs" in first.stdout
    pack, there = tmp_path / "pack", tmp_path / "there.json"
    assert study("--pack", str(pack), "--arm", "graphs", "--arm", "nndup", "--seeds", "1").returncode == 0
    for _ in range(2):  # the second call finds nothing to do
        packed = [sys.executable, "-m", "benchmarks.teaching_packed", str(pack), str(there), "--workers", "2"]
        done = subprocess.run(packed, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert "2 runs done" in done.stdout, done.stderr
    elsewhere = json.loads(there.read_text())[f"graphs-0-{TINY.tokens}"]
    here = json.loads((tmp_path / "out" / "runs" / "graphs-0" / "judged.json").read_text())["bits"]
    assert elsewhere["bits"] == pytest.approx(here, rel=1e-6), "the same run"
    assert study("--unpack", str(there), "--seeds", "1").returncode == 0
    assert (tmp_path / "out" / "runs" / "nndup-0" / "judged.json").exists()
    judged = tmp_path / "out" / "runs" / "graphs-0" / "judged.json"
    before = judged.stat().st_mtime_ns
    options.append(library)  # it may come later
    second = study()
    assert second.returncode == 0, second.stderr
    assert judged.stat().st_mtime_ns == before, "what is known is not done again"
    tables = [part.splitlines() for part in second.stdout.split("\n\n") if part.startswith("|")]
    assert [len(lines) for lines in tables[:1]] == [2 + 6]
    assert len(tables) >= 1 + 3, "of both kinds that are held out, and a part of the first"
    for lines in tables:
        assert all(line.count("|") == lines[0].count("|") for line in lines)
    told = json.loads(judged.read_text())
    assert len(told["bits"]) == 2, "a record, and a network of the release"
    bits = next(iter(told["bits"].values())) / len(code_of(0))
    assert 0.1 < bits < 10
    other = study("--rate", "0.5")
    assert other.returncode == 1
    assert "rate 0.002, now 0.5" in other.stderr
    assert "Traceback" not in other.stderr
